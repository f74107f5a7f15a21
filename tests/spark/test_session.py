"""What `local_session` sets."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

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
