"""One change-stream cursor on one replica set, kept alive."""
