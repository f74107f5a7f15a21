"""Snapshots: reads of the documents of collections at a cluster time.

The entrances are `chunk_planner.ChunkPlanner` on the driver and `reader.ChunkReader` in a task.
"""
