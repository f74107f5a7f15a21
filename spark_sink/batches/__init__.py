"""Micro-batches: where one ends, and what its tasks read.

The entrances are `event_planner.EventPlanner` on the driver and `event_tasks.TaskReader` in a task.
"""
