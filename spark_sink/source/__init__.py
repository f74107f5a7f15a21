"""`spark.readStream.format("mergerouter")` and `spark.read`: micro-batches and their tasks.

The entrance is `data_source.MergerouterDataSource`. `readers` has Spark's interfaces; the planners
on the driver, and what tasks read, do not depend on them.
"""
