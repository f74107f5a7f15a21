"""The upstream mongos, and the connections of clients to it and to other processes."""
