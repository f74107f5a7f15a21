"""A small sharded cluster in one process, over real sockets, for the demo and the tests."""
