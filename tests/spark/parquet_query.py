"""A streaming query from the router to Parquet, in a process that tests kill.

python -m tests.spark.parquet_query URI DATABASE FOLDER [bundled-java] [OPTION=VALUE …]

Writes FOLDER/table and FOLDER/checkpoint. While FOLDER/armed exists, a task creates FOLDER/held
after a hundred rows and waits, so that a test can kill it in the middle of a batch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from spark_sink import local_session
from spark_sink.spark_session import bundled_java
from tests.spark.quick_session import QUICK

MAX_EVENTS = 1000


def parquet_writer(
    spark: SparkSession, uri: str, database: str, folder: Path, **options: str
) -> DataStreamWriter:
    """Return the query's writer, not started yet; `options` are further ones of the source."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if (folder / "armed").exists():
                (folder / "held").touch()
                time.sleep(60)
                raise TimeoutError("nobody killed this process")

    events = (
        spark.readStream.format("mergerouter")
        .option("uri", uri)
        .option("database", database)
        .options(**{"maxEventsPerTrigger": str(MAX_EVENTS), **options})
        .load()
    )
    return (
        events.mapInArrow(hold, events.schema)
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def main(uri: str, database: str, folder: Path, options: dict[str, str]) -> None:
    settings = QUICK | {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = local_session("parquet-query", settings=settings)
    parquet_writer(spark, uri, database, folder, **options).start().awaitTermination()


if __name__ == "__main__":
    if "bundled-java" in sys.argv[4:]:
        home = bundled_java()
        assert home is not None
        os.environ["JAVA_HOME"] = str(home)
    given = dict(each.split("=", 1) for each in sys.argv[4:] if "=" in each)
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), given)
