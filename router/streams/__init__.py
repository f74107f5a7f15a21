"""Merged streams as they run: remote cursors, budgets, waiting, sharing."""
