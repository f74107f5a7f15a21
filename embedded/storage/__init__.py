"""Documents in memory: collections, the catalog, and MongoDB's rules for values and queries."""
