"""Users of the cluster: their logins, their privileges, and signed cluster times."""
