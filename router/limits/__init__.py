"""Bounds of what clients share: connections, messages, logins, and the memory of events."""
