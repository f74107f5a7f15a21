"""Snapshots: reads of the documents of collections at a cluster time.

The entrances are `planner.SnapshotPlanner` on the driver and `reader.ChunkReader` in a task.
"""
