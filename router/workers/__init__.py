"""Several processes on one port, for several cores: one server to its clients."""
