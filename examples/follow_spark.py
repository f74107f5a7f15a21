"""Follow a collection with Spark Structured Streaming; needs the extra ``spark``.

Usage: follow_spark.py [URI [CHECKPOINT]]
"""

import sys

from pyspark.sql import DataFrame

from spark_sink import local_session


def show(changes: DataFrame, batch: int) -> None:
    """Print the changes of one micro-batch in the stream's order."""
    for change in changes.orderBy("token").select("operationType", "documentKey").collect():
        print(change.operationType, change.documentKey, flush=True)


def main(uri: str = "mongodb://127.0.0.1:27020", checkpoint: str = "orders-checkpoint") -> None:
    """Print each change of shop.orders; a checkpoint of an earlier run is continued."""
    spark = local_session()
    changes = (
        spark.readStream.format("mergerouter")
        .option("uri", uri)
        .option("database", "shop")
        .option("collection", "orders")
        .load()
    )
    query = changes.writeStream.foreachBatch(show).option("checkpointLocation", checkpoint).start()
    print("watching", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
