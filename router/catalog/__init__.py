"""The cluster as the router knows it: config server, shards, cluster time."""
