"""Bounds of what clients share: connections, turns, messages, logins, the memory of events."""
