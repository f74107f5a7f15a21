"""Delta tables: those of batches, and current tables, which are kept equal to collections.

The entrance is `current_table.CurrentTable`.
"""
