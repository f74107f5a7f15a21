"""A job whose current table has columns that follow the documents, and keeps deleted ones."""

import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from bson.int64 import Int64
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sink import read_at
from spark_sink.errors import OptionError
from spark_sink.jobs.history import restoration
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_query import table_form
from spark_sink.jobs.report.status import lines_of, status_of
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.tables.current_table import CurrentTable
from spark_sink.verification.collection_comparison import Comparison
from spark_sink.verification.verify_job import verify_job
from tests.spark.conftest import Shop
from tests.spark.jobs import NO_DIFFERENCE, differences, run_job

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(600)]
TABLES = ("bronze", "current")


def run_typed(spark: SparkSession, shop: Shop, folder: Path, **form: Any) -> dict[int, TaskReport]:
    """Run the job up to the present; return what its batches have written."""
    return run_job(spark, shop, folder, TABLES, names=[f"{shop.database}.orders"], **form)


def rows_of(folder: Path) -> dict[int, dict[str, Any]]:
    """The rows by `_id`, as a reader of Delta tables finds them."""
    table = DeltaTable(folder / "current")
    return {row["_id"]: row for row in table.to_pyarrow_table().to_pylist()}


def test_columns_follow_the_documents_of_a_job(
    tmp_path: Path, shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"schema": "infer", "deletes": "soft"}
    noon = datetime(2024, 2, 29, 12, tzinfo=UTC)
    shop.insert(30)
    shop.orders.update_one({"_id": 1, "customer": 1}, {"$set": {"at": noon, "place": {"x": 1}}})
    run_typed(spark, shop, tmp_path, **form)
    rows = rows_of(tmp_path)
    assert (rows[1]["at"], rows[1]["place"], rows[2]["at"]) == (noon, {"x": 1}, None)

    # By update descriptions: a new column, a wider one, a value that does not fit, a delete.
    shop.orders.update_one({"_id": 2, "customer": 2}, {"$set": {"place.y": "new", "total": 2.5}})
    shop.orders.update_one({"_id": 3, "customer": 3}, {"$set": {"total": Int64(2**60)}})
    shop.orders.update_one({"_id": 4, "customer": 4}, {"$set": {"at": "noon"}})
    shop.orders.delete_one({"_id": 5, "customer": 5})
    name, counted = f"{shop.database}.orders", Counter[tuple[str, str]]()
    for batch in run_typed(spark, shop, tmp_path, **form).values():
        counted.update({(of, op): number for of, op, number in batch.counts})
    assert (counted[name, "u"], counted[name, "d"]) == (3, 1)
    rows = rows_of(tmp_path)
    assert rows[2]["place"] == {"x": None, "y": "new"}
    assert (rows[1]["at"], rows[4]["at"]) == ("2024-02-29T12:00:00Z", "noon")
    assert (rows[2]["total"], rows[3]["total"]) == (2.5, None)
    assert json.loads(rows[3]["_rescued"]) == {"total": 2**60}
    assert [number for number, row in rows.items() if row["_deleted"]] == [5]
    assert rows[5]["text"] == "x" * 99
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE
    status = status_of(JobFolder(str(tmp_path)))
    assert status["rescuedDocuments"] == 1
    assert "rescued     1 documents with fields that fit no column" in lines_of(status)

    # All readers find the same.
    table = DeltaTable(tmp_path / "current")
    expected = sorted((number, row["total"], row["at"]) for number, row in rows.items())
    columns = ["_id", "total", "at"]
    found = {
        "Spark": [
            tuple(row)
            for row in CurrentTable.existing(str(tmp_path / "current"))
            .log.read(spark).select(columns).collect()
        ],
        "Polars": polars.scan_delta(str(tmp_path / "current")).select(columns).collect().rows(),
        "DuckDB": duckdb.from_arrow(table.to_pyarrow_dataset())
        .project('_id, total, "at"').fetchall(),
    }  # fmt: skip
    assert {name: sorted(each) for name, each in found.items()} == dict.fromkeys(found, expected)
    with pytest.raises(OptionError, match="has --deletes soft, not hard"):
        run_typed(spark, shop, tmp_path, schema="infer")

    # A column that is not its document's, as another writer leaves it. Verify takes hours: the
    # files of the version with which it begins are deleted before it looks at the columns.
    table.update(updates={"total": "total + 1"}, predicate="_id = 2")
    compare = Comparison.compare

    def vacuumed(*given: Any) -> Any:
        compared = compare(*given)
        table.update(updates={"total": "total"}, predicate="_id = 2")
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        return compared

    monkeypatch.setattr(Comparison, "compare", vacuumed)
    found = verify_job(spark, JobFolder(str(tmp_path)), shop.uri, ["current"])["current"].first
    place = {"namespace": f"{shop.database}.orders", "key": '{"$numberInt": "2"}'}
    assert found[0]["difference"] == "checksum"
    assert found[1:] == [{**place, "difference": "columns", "fields": ["total"]}]


@pytest.mark.usefixtures("spark")
def test_a_schema_is_checked() -> None:
    form = table_form(JobRecord(schema="total DECIMAL(10,2) NOT NULL, tags ARRAY<STRING>"))
    assert form.document_schema is not None
    assert form.document_schema.simpleString() == "struct<total:decimal(10,2),tags:array<string>>"
    for schema, message in (
        ("a FLOAT", "documents cannot be read as float"),
        ("a INT, A INT", "'A' cannot be a column"),
        ("_token STRING", "'_token' cannot be a column"),
        ("`a b` STRING", "'a b' cannot be a column"),
        ("x ARRAY<STRUCT<y: ARRAY<STRUCT<a: INT, A: INT>>>>", "'x.y.A' cannot be a column"),
        ("a STRNG", "STRNG"),
    ):
        with pytest.raises(OptionError, match=message) as raised:
            table_form(JobRecord(schema=schema))
        assert "--schema" in str(raised.value)


NAMES = (
    "NAME", "name", "a`b", "`", "``", "a.b", ".", 'q"uote', "it's", "*", "st*r", "a[0]", " ", "x y",
    "", "new\nline", "tab\t", "😀", "é", "$x", "select", "a-b", "a,b", "x;y", "a\\b", "%41", "a/b",
    "a:b", "#", "<>", "_token", "keyRange", "x=y", "(",
)  # fmt: skip
"""Names of fields that a parser of SQL, of Delta or of Parquet reads as something else."""


@pytest.mark.parametrize("kind", ["infer", "file, flatten", "typed source"])
def test_any_name_of_a_field_may_be_in_a_typed_table(
    tmp_path: Path, shop: Shop, spark: SparkSession, kind: str
) -> None:
    """The rows are the documents, also in a table that is made again; its columns are as before."""
    columns = ", ".join(f"`{each.replace('`', '``')}` INT" for each in ("a`b", "*", 'q"', "NAME"))
    schema = f"_id INT, {columns}, `ne``st` STRUCT<{columns}>"
    form: dict[str, Any] = {"schema": "infer", "flatten": "flatten" in kind, "deletes": "soft"}
    if kind.startswith("file"):
        form["schema"] = schema
    if kind == "typed source":
        form["options"] = {"documents": "typed", "documentSchema": schema}
    folder, where = tmp_path / "job", JobFolder(str(tmp_path / "job"))
    values = {each: number for number, each in enumerate(NAMES)}
    shop.orders.insert_many(
        [{"_id": 1, "customer": 7, "name": "later", "gone": 1}, {"_id": 2, "customer": 2},
         {"_id": 3, "customer": 3}]
    )  # fmt: skip
    run_typed(spark, shop, folder, **form)
    shop.orders.insert_one({"_id": 0, "customer": 1, **values, "ne`st": values})
    run_typed(spark, shop, folder, **form)
    # No document has the field `gone` and the name that came first any more.
    shop.orders.replace_one({"_id": 1, "customer": 7}, {"customer": 7, "list": [values]})
    shop.orders.delete_one({"_id": 3, "customer": 3})
    time = shop.now()
    run_typed(spark, shop, folder, **form)
    assert differences(spark, shop, folder) == NO_DIFFERENCE

    before, rows = CurrentTable.existing(str(folder / "current")).log.read(spark), rows_of(folder)
    found = {each["_id"]: each.asDict(recursive=True) for each in before.collect()}
    own = {"_document", "_clusterTime", "keyRange"}  # of other types of Python's
    for number, row in found.items():
        assert {**row, **dict.fromkeys(own)} == {**rows[number], **dict.fromkeys(own)}
    rescued = json.loads(rows[0]["_rescued"]).keys()
    for name, value in values.items():
        assert str(rows[0].get(name)) == str(value) or name in rescued, name
    if not kind.startswith("file"):
        assert {"gone", "name", "a`b", "*", "😀"} <= rows[0].keys()
        assert "NAME" in rescued
    read = read_at(spark, str(folder), f"{time.time},{time.inc}")["current"]
    assert read.columns == before.columns
    assert {row._id for row in read.where("_deleted").collect()} == {3}
    assert read.count() == 4
    made = restoration.rebuild_table(spark, where, time, str(tmp_path / "restored"))
    assert made.log.count() == 4

    settings = DeltaTable(folder / "current").metadata().configuration
    shutil.rmtree(folder / "current")
    assert restoration.lacks_current(where)
    restoration.rebuild_table(spark, where)
    assert CurrentTable.existing(str(folder / "current")).log.read(spark).schema == before.schema
    assert DeltaTable(folder / "current").metadata().configuration == settings
    again = rows_of(folder)
    assert [{**again[n], "keyRange": None} for n in rows] == [
        {**row, "keyRange": None} for row in rows.values()
    ]
    shop.orders.insert_one({"_id": 6, "customer": 6, "NaMe": 1})
    run_typed(spark, shop, folder, **form)
    assert differences(spark, shop, folder) == NO_DIFFERENCE
