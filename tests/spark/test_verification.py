"""`job verify`: whole rows of all tables, with the stream, the collections and their checksums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_sink.cli import job
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.tables_job import (
    BRONZE,
    CURRENT,
    MESSAGES,
    TRANSACTIONS,
    TablesJob,
    namespace_options,
)
from tests.spark.conftest import Shop
from tests.unit.spark_sink.verification.test_checksums import other

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

TABLES = (BRONZE, CURRENT, MESSAGES, TRANSACTIONS)
_SCHEMA = "_id BIGINT, n INT, tags MAP<STRING, INT>"
OPTIONS: list[dict[str, str]] = [
    {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"},
    {"fullDocument": "updateLookup", "documents": "typed", "documentSchema": _SCHEMA},
]


def run_once(spark: SparkSession, shop: Shop, folder: Path, **options: str) -> None:
    """Run a job with all tables in this process, up to the present."""
    chosen = {**namespace_options([shop.database]), "snapshotMode": "initial", **options}
    where = JobFolder(str(folder))
    record = JobRecord((shop.database,), chosen, TABLES, messages={"prefix": "p"})
    where.begin(record)
    TablesJob(where, record, shop.uri).start(spark, None).awaitTermination()


def change_everything(shop: Shop) -> None:
    for number in range(20, 27):
        key = {"_id": number, "customer": number % 10}
        shop.orders.insert_one({**key, "n": 1, "tags": {"a": 1}})
        shop.orders.update_one(key, {"$set": {"n": 2}, "$unset": {"tags": 1}})
        shop.orders.replace_one(key, {**key, "n": 3})
    shop.orders.delete_one({"_id": 26, "customer": 6})
    for number in range(30, 33):
        with shop.client.start_session() as session, session.start_transaction():
            for each in (number, number + 5):  # on both shards
                document = {"_id": each, "customer": each % 10}
                shop.orders.insert_one(document, session=session)
    shop.client[shop.database].items.insert_one({"_id": 1})
    shop.client[shop.database].items.rename("things")


def damaged(rows: pa.Table, chosen: list[int], left: set[str]) -> tuple[pa.Table, set[str]]:
    """Rows of which one has another value in each column, one is missing and one twice."""
    done = set()
    waiting = list(chosen)
    for at, name in enumerate(rows.column_names):
        values = rows[name].to_pylist()
        row = next((each for each in waiting if values[each] is not None), None)
        if row is not None and name not in left:
            waiting.remove(row)
            values[row] = other(values[row])
            column = pa.array(values, rows.schema.field(name).type)
            rows, done = rows.set_column(at, name, column), {*done, name}
    kept = [each for each in range(rows.num_rows) if each != waiting[0]]
    return rows.take([*kept, waiting[1]]), done


@pytest.mark.parametrize("options", OPTIONS, ids=["images", "looked up, typed"])
def test_whole_rows_are_compared_with_the_stream(
    options: dict[str, str],
    tmp_path: Path,
    shop: Shop,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def session(*_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("spark_sink.cli.session", session)

    def verified(status: int) -> dict[str, Any]:
        arguments = ["verify", "--json", "--uri", shop.uri, "--out", str(tmp_path)]
        result = CliRunner().invoke(job, arguments)
        assert result.exit_code == status, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    shop.insert(5)
    shop.client[shop.database].command(
        "collMod", "orders", changeStreamPreAndPostImages={"enabled": True}
    )
    run_once(spark, shop, tmp_path, **options)
    change_everything(shop)
    run_once(spark, shop, tmp_path, **options)
    found = verified(0)
    assert found.keys() == {*TABLES, "notifications"}
    for name, each in found.items():
        assert (each["differences"], each["remark"]) == (0, ""), (name, each)
        kinds = [line.partition(" with ")[0].partition(" from ")[0] for line in each["compared"]]
        against = ["the documents" if name == CURRENT else "the events"]
        assert kinds == ["all rows", *(against if name in TABLES else [])]

    whole = {name: DeltaTable(tmp_path / name).to_pyarrow_table() for name in TABLES}
    expected = {}
    for name, left in (
        (BRONZE, {"token", "batch", "shard", "operationType", "snapshot"}),
        (MESSAGES, {"token", "index", "batch"}),
        (TRANSACTIONS, {"id", "batch", "first_token"}),
    ):
        rows = whole[name]
        events = range(rows.num_rows)
        if name == BRONZE:
            kinds = rows["operationType"].to_pylist()
            events = [
                row
                for row, kind in enumerate(kinds)
                if kind not in ("read", "snapshotEnd")
                and not (kind == "update" and options["fullDocument"] == "updateLookup")
            ]
        if name == MESSAGES:
            values = rows["value"].to_pylist()
            events = [row for row, text in enumerate(values) if text and '"op":"c"' in text]
        if name == TRANSACTIONS:
            rows = pa.concat_tables([rows.take([0, 1, 2])])
            expected[name] = {"event_count", "data_collections", "clusterTime"}
            for row, column in enumerate(sorted(expected[name])):
                values = rows[column].to_pylist()
                values[row] = other(values[row])
                array = pa.array(values, rows.schema.field(column).type)
                rows = rows.set_column(rows.column_names.index(column), column, array)
        else:
            rows, expected[name] = damaged(rows, list(events), left)
        write_deltalake(tmp_path / name, rows, mode="overwrite")
    found = verified(1)
    for name, columns in expected.items():
        first = found[name]["first"]
        fields = {each for row in first for each in row.get("fields", ())}
        assert fields == columns, (name, first)
        kinds = {row["difference"] for row in first}
        most = {"missing", "doubled"} if name != TRANSACTIONS else set()
        assert kinds == {"checksum", "different", *most}, (name, first)

    # What the stream does not have, the checksum has: a snapshot's rows, and keys of documents.
    for name in TABLES:
        rows = whole[name]
        if name == BRONZE:
            read = rows["operationType"].to_pylist().index("read")
            rows = rows.take([each for each in range(rows.num_rows) if each != read])
        if name == CURRENT:
            at = rows.column_names.index("token")
            tokens = pa.array([other(each) for each in rows["token"].to_pylist()])
            rows = rows.set_column(at, "token", tokens)
        write_deltalake(tmp_path / name, rows, mode="overwrite")
    found = verified(1)
    kinds = {name: [row["difference"] for row in each["first"]] for name, each in found.items()}
    assert {name for name, each in kinds.items() if each} == {BRONZE, CURRENT}, found
    assert kinds[BRONZE] == ["checksum"]
    assert "checksum" in kinds[CURRENT]

    # With the rows as they were, there is no difference.
    for name in (BRONZE, CURRENT):
        write_deltalake(tmp_path / name, whole[name], mode="overwrite")
    verified(0)
