"""The members of one replica set, and which of them to read from."""
