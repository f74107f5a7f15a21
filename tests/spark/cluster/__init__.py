"""Jobs and queries on a standalone cluster of Spark, whose hosts have only what docs name."""
