"""Signals to a running query: ad hoc snapshots, with Debezium's documents.

The entrance is `snapshot_scheduler.SnapshotScheduler`.
"""
