"""PySpark reads the router: a fault-tolerant stream source whose offsets are resume tokens."""
