"""What a change stream is: requests, tokens, what shards are asked, and the merged stream."""
