"""Which clients share a stream."""
