"""Signals to a running query: ad hoc snapshots, with Debezium's documents.

The entrance is `ad_hoc.SignalProcessor`.
"""
