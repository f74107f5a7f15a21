"""Verifies tables: against what was written to them, the stream, and the collections."""
