"""Signals to a running query: ad hoc snapshots, with Debezium's documents.

The entrance is `query_snapshots.QuerySnapshots`.
"""
