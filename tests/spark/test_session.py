"""What `local_session` sets."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_sink import register
from spark_sink.session.spark_session import _DYNAMIC

pytestmark = pytest.mark.xdist_group("spark")  # one Spark

SCHEMA = "token string, operationType string, event binary"


def test_queries_write_unique_columns_without_parquet_dictionaries(
    spark: SparkSession, tmp_path: Path
):
    # Of values that repeat, Parquet's writer keeps a dictionary unless it is told not to.
    rows = [("82", "insert", b"event")] * 100
    spark.createDataFrame(rows, SCHEMA).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "rows"))
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "table"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    [group] = {
        tuple("DICTIONARY" in str(chunk.encodings) for chunk in _columns(path))
        for path in (tmp_path / "table").glob("*.parquet")
    }
    assert group == (False, True, False)


def test_a_progress_bar_is_drawn_on_terminals_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.ui.showConsoleProgress") == str(sys.stderr.isatty()).lower()


def _columns(path: Path) -> list[pq.ColumnChunkMetaData]:
    group = pq.ParquetFile(path).metadata.row_group(0)
    return [group.column(number) for number in range(group.num_columns)]


def test_a_batch_of_a_snapshot_has_two_tasks_for_each_core() -> None:
    """Spark's planner has no session: the class that is registered has the number."""
    for conf, tasks in (
        ({}, 6),
        ({"spark.executor.instances": "5", "spark.executor.cores": "4"}, 40),
        ({"spark.cores.max": "16"}, 32),
        ({"spark.dynamicAllocation.enabled": "true", _DYNAMIC: "100"}, 200),
    ):
        spark = MagicMock()
        spark.sparkContext.pythonExec = sys.executable
        spark.sparkContext.defaultParallelism = 3
        spark.sparkContext.getConf.return_value.get = lambda name, default, c=conf: c.get(
            name, default
        )
        spark.conf.get.return_value = ""
        register(spark)
        [source] = spark.dataSource.register.call_args.args
        source = cloudpickle.loads(cloudpickle.dumps(source))
        for given, expected in (({}, tasks), ({"snapshottasks": "9"}, 9)):
            options = CaseInsensitiveDict({"uri": "mongodb://127.0.0.1:1/", **given})
            assert source(options)._parsed().snapshot.tasks == expected
