"""The router: merges the change streams of all shards and answers drivers as mongos does."""
