"""A job's tables of the former forms, without Delta, are rewritten at the next start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bson
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.errors import OptionError
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.current_query import rewrite_former_current
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.delta_log import Batch
from spark_sink.tables.fold import TABLE
from spark_sink.tables.former_tables import rewrite_former_batches

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

TOKEN = "82697DF0C7000000012B0229296E04"


def tree(folder: Path) -> list[str]:
    """The first folders and files of a table."""
    return sorted(path.name for path in folder.iterdir())


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return DeltaTable(folder).to_pyarrow_table().to_pylist()


def test_a_current_table_is_rewritten_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = bson.encode({"_id": 1})
    row = ("shop.a b", "shop", "a b", "1", '{"_id": 1}', '{"_id": 1}', document, TOKEN)
    rows = spark.range(30).select(
        *(F.lit(value).alias(name) for name, value in zip(TABLE.fieldNames(), row, strict=False)),
        F.timestamp_seconds(F.lit(1_769_861_319)).alias("clusterTime"),
        F.col("id").alias("number"),
    )
    rows = rows.withColumn("key", F.col("number").cast("string")).drop("number")
    rows.coalesce(1).write.parquet(str(tmp_path / "data" / "one" / "bucket=0"))
    rows.coalesce(1).write.parquet(str(tmp_path / "data" / "older" / "bucket=0"))
    [file] = (tmp_path / "data" / "one" / "bucket=0").glob("*.parquet")
    version = {
        "number": 10,
        "buckets": 3,
        "keys": ["_id"],
        "files": {"0": [str(file.relative_to(tmp_path))]},
        "through": TOKEN,
        "complete_from": "8200",
        "complete_in": {"shop.a b": "8201"},
        "data": "data/one",
    }
    (tmp_path / "versions").mkdir()
    older = json.dumps({**version, "number": 9, "files": {}})
    (tmp_path / "versions" / f"{9:012}.json").write_text(older)
    (tmp_path / "versions" / f"{10:012}.json").write_text(json.dumps(version))

    with pytest.raises(OptionError, match="has its former form: start its query or its job once"):
        CurrentTable.existing(str(tmp_path))
    rewrite_former_current(spark, str(tmp_path))
    assert f"the table at {tmp_path} is rewritten as a Delta table" in capsys.readouterr().err
    [folder] = set(tree(tmp_path)) - {"_delta_log", "_changes"}
    assert folder.startswith("keyRange=")
    assert sorted(int(row["key"]) for row in rows_of(tmp_path)) == list(range(30))
    table = CurrentTable.existing(str(tmp_path))
    assert table.state.position == {
        "keys": ["_id"],
        "ranges": [[folder.removeprefix("keyRange="), "shop\x00a b\x000", "shop\x00a b\x009"]],
        "through": TOKEN,
        "completeFrom": "8200",
        "completeIn": {"shop.a b": "8201"},
        "clusterTime": "2026-01-31T12:08:39+00:00",
    }
    assert {row.clusterTime.isoformat() for row in table.read(spark).collect()} == {
        row["clusterTime"].replace(tzinfo=None).isoformat() for row in rows_of(tmp_path)
    }
    # As if killed after the commit: only the former files go.
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / f"{10:012}.json").write_text(json.dumps(version))
    rewrite_former_current(spark, str(tmp_path))
    assert "versions" not in tree(tmp_path)
    assert "rewritten" not in capsys.readouterr().err
    assert len(rows_of(tmp_path)) == 30


def test_a_table_of_batches_is_rewritten_once_up_to_the_last_committed_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    def write(number: int, to: Path) -> None:
        rows = spark.createDataFrame(
            [(f"82{number}", "007"), (f"83{number}", "shop.a b/c")],
            "token string, namespace string",
        )
        rows = rows.withColumn("date", F.lit("2026-01-31").cast("date"))
        partitioned = rows.withColumn("batch", F.lit(number)).write.mode("append")
        partitioned.partitionBy("namespace", "date", "batch").parquet(str(to))

    for number in range(4):
        write(number, tmp_path)
    # As if killed while the files of two batches were being exchanged: one is gone already.
    day = "namespace=007/date=2026-01-31"
    compacted = tmp_path / "_compact" / "merged"
    files = [str(tmp_path / day / f"batch={number}") for number in range(2)]
    spark.read.parquet(*files).coalesce(1).write.parquet(str(compacted))
    for file in (tmp_path / day / "batch=0").iterdir():
        file.unlink()
    names = [f"{day}/batch={number}" for number in range(2)]
    note = {"from": names, "to": names[-1], "data": "_compact/merged"}
    compacted.with_name("merged.json").write_text(json.dumps(note))

    last = Batch("q", 2, {"_data": "82"})
    rewrite_former_batches(spark, str(tmp_path), ("namespace", "date"), last)
    found = {(row["token"], row["namespace"], str(row["date"])) for row in rows_of(tmp_path)}
    assert found == {
        (f"{head}{number}", name, "2026-01-31")
        for number in range(3)
        for head, name in (("82", "007"), ("83", "shop.a b/c"))
    }
    assert len(rows_of(tmp_path)) == 6
    assert not list(tmp_path.rglob("batch=*"))
    assert "_compact" not in tree(tmp_path)
    table = AppendTable(str(tmp_path))
    assert table.log.position() == {"query": "q", "batch": 2, "offset": {"_data": "82"}}
    assert table.log.has(last)
    assert not table.log.has(Batch("q", 3))
    assert sorted(row.namespace for row in table.read(spark).collect()) == [
        *["007"] * 3,
        *["shop.a b/c"] * 3,
    ]
    rewrite_former_batches(spark, str(tmp_path), ("namespace", "date"), last)
    assert len(rows_of(tmp_path)) == 6
