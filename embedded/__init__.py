"""A small sharded cluster in one process, over real sockets, for the demo and the tests.

docs/design.md#a-command-and-a-change-stream-on-the-embedded-cluster shows where each step is.
"""
