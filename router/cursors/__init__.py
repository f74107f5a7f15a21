"""Merged cursors: the cursors of clients on sharded change streams."""
