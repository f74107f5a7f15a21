"""Filters of change streams that the router evaluates itself, on the events' bytes (pure)."""
