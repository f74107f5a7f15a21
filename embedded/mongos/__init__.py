"""The endpoint of the embedded cluster that plays mongos: routing, DDL, migrations."""
