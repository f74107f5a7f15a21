"""Rows of change events as Arrow batches, with documents as JSON, BSON or structs.

The entrance is `event_rows.EventRows`; `row_schema` is its schema.
"""
