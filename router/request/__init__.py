"""What a client asks for: the parsed aggregate, and the commands that shards get for it."""
