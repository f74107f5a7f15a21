"""Commands for operators: follow a stream, show a router's status, check its settings."""
