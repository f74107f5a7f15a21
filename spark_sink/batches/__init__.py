"""Micro-batches: where one ends, and what its tasks read.

The entrances are `batch_planner.BatchPlanner` on the driver and `read_task.TaskReader` in a task.
"""
