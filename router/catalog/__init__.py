"""The cluster as the router sees it: shards, time, versions, and the upstream; checks of all."""
