"""Access to an embedded server: users and roles, logins, authorization, and signed cluster times.

A member and the embedded mongos share this package: ``control.AccessControl`` is what each of them
asks. Without a key file and without ``--auth``, users exist and may log in, and nobody has to.
"""
