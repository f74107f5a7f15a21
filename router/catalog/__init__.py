"""The router's view of the cluster: config server, shards, cluster time."""
