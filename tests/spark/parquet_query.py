"""A streaming query of its own process, which tests kill: router to Parquet, with a checkpoint.

python -m tests.spark.parquet_query URI FOLDER [available-now] [bundled-java]

Writes FOLDER/table and FOLDER/checkpoint. While FOLDER/armed exists, a task that has passed on a
hundred rows creates FOLDER/held and goes no further: so it can be killed in the middle of a batch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from spark_sink import local_session
from spark_sink.java_runtime import bundled_java
from tests.spark.quick_session import QUICK

MAX_EVENTS = 1000


def main(uri: str, folder: Path, *, available_now: bool) -> None:
    settings = QUICK | {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = local_session("parquet-query", settings=settings)
    events = (
        spark.readStream.format("mergerouter")
        .option("uri", uri)
        .option("database", "shop")
        .option("maxEventsPerTrigger", MAX_EVENTS)
        .load()
    )

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if (folder / "armed").exists():
                (folder / "held").touch()
                time.sleep(60)
                raise TimeoutError("nobody killed this process")

    writer = (
        events.mapInArrow(hold, events.schema)
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    if "bundled-java" in sys.argv:
        runtime = bundled_java()
        assert runtime is not None
        os.environ["JAVA_HOME"] = str(runtime.home)
    main(sys.argv[1], Path(sys.argv[2]), available_now="available-now" in sys.argv)
