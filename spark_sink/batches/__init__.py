"""Micro-batches: where one ends, and what its tasks read.

The entrances are `batch_planner.BatchPlanner` on the driver and `event_tasks.TaskReader` in a task.
"""
