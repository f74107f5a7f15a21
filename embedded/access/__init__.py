"""Access to an embedded cluster: its users with their roles, logins, and signed cluster times.

All servers of a cluster share one ``control.AccessControl``. Without a key file, users may log in,
and nobody has to.
"""
