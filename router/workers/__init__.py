"""Worker processes: they share one port, use several cores and act as one server to clients."""
