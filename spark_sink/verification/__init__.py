"""Verifies tables: all of a job on command (`verify_job`), or the current one in `rounds`.

Rows are compared with what was written, by checksums; with the stream (`stream_comparison`); and
with the documents of collections (`collection_comparison`, by `comparison_tasks`).
"""
