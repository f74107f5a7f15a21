"""The cluster as the router sees it: shards, catalog, time and versions; checks of all servers."""
