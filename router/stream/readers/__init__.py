"""What the clients of a stream read: its log, parts of it, and when readers wake."""
