"""The embedded mongos, an endpoint of the cluster: routing, DDL, migrations."""
