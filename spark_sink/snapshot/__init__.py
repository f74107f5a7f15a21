"""Snapshots: reading the documents that collections hold at a point of the change stream."""
