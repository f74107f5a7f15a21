"""Current tables: a table of Parquet files that is kept equal to its collections."""
