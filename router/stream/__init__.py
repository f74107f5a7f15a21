"""One merged stream for many clients: what they read, how it is merged, and how shards are read."""
