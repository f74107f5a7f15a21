"""The members of one replica set and the selection of a member to read from."""
