"""A change-stream cursor on one replica set, reopened when it fails."""
