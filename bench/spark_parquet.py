"""Read a backlog into Parquet files by a Spark query; print the rows and the events a second."""

import argparse
import json
import tempfile
from pathlib import Path

from bench.events import FIRST_SECOND
from bench.spark_reading import document_options
from spark_sink import local_session


def main() -> None:
    """Run one query with ``availableNow`` and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the router's port")
    parser.add_argument("--per-batch", type=int, required=True)
    parser.add_argument("--documents", default="json")
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
    spark = local_session("bench", cores=args.cores, settings=settings)
    with tempfile.TemporaryDirectory() as folder:
        frame = (
            spark.readStream.format("mergerouter")
            .option("uri", f"mongodb://127.0.0.1:{args.port}")
            .option("startAtOperationTime", f"{FIRST_SECOND},1")
            .option("maxEventsPerTrigger", args.per_batch)
            .options(**document_options(args.documents))
            .load()
        )
        writer = frame.writeStream.format("parquet").option("path", str(Path(folder, "table")))
        writer = writer.option("checkpointLocation", str(Path(folder, "checkpoint")))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        rows = spark.read.parquet(str(Path(folder, "table"))).count()
    # The first two batches include Spark's start and are not yet of full size.
    warm = progress[2:] or progress
    events = sum(each["numInputRows"] for each in warm)
    seconds = sum(each["durationMs"]["triggerExecution"] for each in warm) / 1e3
    spark.stop()
    print(json.dumps({"rows": rows, "parquet_rate": events / seconds}))


if __name__ == "__main__":
    main()
