"""`spark.readStream.format("mergerouter")` and `spark.read`: Spark's view of the other folders.

The entrance is `data_source.MergerouterDataSource`.
"""
