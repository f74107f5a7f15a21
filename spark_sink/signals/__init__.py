"""Signals to a running query: snapshots on demand, with Debezium's documents."""
