"""Settings of Spark and of Java that shorten short-lived tests.

``python -m tests.spark.quick_session`` writes ARCHIVE: sessions that map Java's classes from it
take half as long to start.
"""

import os
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[2] / "build" / "spark.jsa"
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.driver.extraJavaOptions": f"-Xss16m {_SMALL}",
    "spark.driver.memory": "600m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.default.parallelism": "1",
}


def share_classes() -> None:
    """Have the Java of all sessions of this process and its children map ARCHIVE, if it exists."""
    if ARCHIVE.exists():
        # Another Java than the one that wrote it, and without the log warns of it, goes on alone.
        shared = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{shared} {_SMALL}")


def main() -> None:
    """Write ARCHIVE at the end of a session that has run a query."""
    from pyspark import SparkContext

    from spark_sink import local_session

    ARCHIVE.parent.mkdir(exist_ok=True)
    made = ARCHIVE.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
    spark = local_session("archive", settings=QUICK)
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.readStream.format("rate").load()
        writer = rows.mapInArrow(lambda batches: batches, rows.schema).writeStream
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        written = f"{folder}/table"
        writer.trigger(availableNow=True).start(written, format="parquet").awaitTermination()
        spark.read.parquet(written).where("value >= 0").groupBy("value").count().collect()
        gateway = SparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.proc.stdin.close()  # which ends it
        gateway.proc.wait()
    if made.exists():
        made.replace(ARCHIVE)


if __name__ == "__main__":
    main()
