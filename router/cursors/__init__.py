"""Merged cursors: what a client sees of a sharded change stream, and the remotes behind it."""
