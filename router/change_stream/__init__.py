"""Change streams: requests, tokens, commands for the shards, and the merged stream."""
