"""`job verify`: whole rows of all tables, with the stream, the collections and their checksums."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import bson
import pyarrow as pa
import pytest
from bson.timestamp import Timestamp
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from typer.testing import CliRunner

from spark_sink.cli import job
from spark_sink.events.positions import ABOVE_ALL_TOKENS, AtTime
from spark_sink.events.runs import run_of
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import BRONZE, CURRENT, MESSAGES, TRANSACTIONS
from spark_sink.rows.event_rows import EventRows
from spark_sink.verification import stream_comparison
from spark_sink.verification.verify_job import verify_job
from tests.doubles.event_history import event_token
from tests.doubles.table_damages import other
from tests.spark.conftest import Shop
from tests.spark.jobs import TABLES, change_everything, run_job

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(900)]

_SCHEMA = "_id BIGINT, n INT, tags MAP<STRING, INT>"
OPTIONS: list[dict[str, str]] = [
    {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"},
    {"fullDocument": "updateLookup", "documents": "typed", "documentSchema": _SCHEMA},
]


def run_once(spark: SparkSession, shop: Shop, folder: Path, **options: str) -> None:
    """Run a job with all tables in this process, up to the present."""
    run_job(spark, shop, folder, TABLES, options=options, messages={"prefix": "p"})


def changed(rows: pa.Table, name: str, row: int) -> pa.Table:
    """Rows of which one has another value in a column."""
    values = rows[name].to_pylist()
    values[row] = other(values[row])
    column = pa.array(values, rows.schema.field(name).type)
    return rows.set_column(rows.column_names.index(name), name, column)


def damage(folder: Path, name: str, left: set[str], is_event: Callable[[Any], bool]) -> set[str]:
    """Change each column of a table but some, in another event each; return the columns.

    Other events are removed and doubled.
    """
    rows = DeltaTable(folder / name).to_pyarrow_table()
    waiting = [row for row, values in enumerate(rows.to_pylist()) if is_event(values)]
    done = set()
    for column in rows.column_names:
        filled = rows[column].is_valid().to_pylist()
        row = next((each for each in waiting if filled[each]), None)
        if row is not None and column not in left:
            waiting.remove(row)
            rows, done = changed(rows, column, row), {*done, column}
    if len(waiting) > 1:
        kept = [each for each in range(rows.num_rows) if each != waiting[0]]
        rows = rows.take([*kept, waiting[1]])
    write_deltalake(folder / name, rows, mode="overwrite")
    return done


def damage_events(folder: Path, options: Mapping[str, str]) -> dict[str, set[str]]:
    """Damage what is compared with the stream; return which columns, by table."""
    looks_up = options["fullDocument"] == "updateLookup"

    def in_bronze(row: Mapping[str, Any]) -> bool:
        kind = row["operationType"]
        return kind not in ("read", "snapshotEnd") and not (looks_up and kind == "update")

    own = {"token", "batch", "shard", "operationType", "snapshot"}
    return {
        BRONZE: damage(folder, BRONZE, own, in_bronze),
        MESSAGES: damage(
            folder,
            MESSAGES,
            {"token", "index", "batch"},
            lambda row: '"op":"c"' in (row["value"] or ""),
        ),
        TRANSACTIONS: damage(
            folder, TRANSACTIONS, {"id", "batch", "first_token", "last_token"}, lambda row: True
        ),
    }


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

    monkeypatch.setattr("spark_sink.spark_session.job_session", session)

    def verified(status: int, *more: str) -> dict[str, Any]:
        arguments = ["verify", "--json", "--uri", shop.uri, "--out", str(tmp_path), *more]
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
    assert found.keys() == {*TABLES, "notifications", "quarantine"}
    for name, each in found.items():
        assert (each["differences"], each["remark"]) == (0, ""), (name, each)
        kinds = [line.partition(" with ")[0].partition(" from ")[0] for line in each["compared"]]
        against = ["the documents" if name == CURRENT else "the events"]
        assert kinds == ["all rows", *(against if name in TABLES else [])]

    whole = {name: DeltaTable(tmp_path / name).to_pyarrow_table() for name in TABLES}
    expected = damage_events(tmp_path, options)
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
            rows = changed(rows, "documentKey", 0)
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

    # A file that cannot be read keeps no other table from the comparison with the stream.
    unreadable = Path(DeltaTable(tmp_path / MESSAGES).file_uris()[0])
    written = unreadable.read_bytes()
    unreadable.write_bytes(b"x" * len(written))
    found = verified(1)
    assert found[MESSAGES]["failed"]
    for name in (BRONZE, TRANSACTIONS):
        assert (found[name]["differences"], found[name]["remark"]) == (0, ""), found[name]
        assert "the events" in found[name]["compared"][-1], found[name]
    unreadable.write_bytes(written)

    # After a start with other options, rows are compared from that start on.
    run_once(spark, shop, tmp_path, **options, **{"field.exclude.list": "*.orders.n"})
    assert "of the time to compare" in verified(0, "--table", BRONZE)[BRONZE]["remark"]
    shop.insert(1)
    run_once(spark, shop, tmp_path, **options, **{"field.exclude.list": "*.orders.n"})
    found = verified(0, "--table", BRONZE)
    assert "with the stream" in found[BRONZE]["compared"][-1], found


def test_after_other_options_the_events_of_the_same_cluster_time_are_compared(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    """A start may divide the events of one time, as of an insertMany from MongoDB 8.0 on."""
    run_once(spark, shop, tmp_path)
    with shop.client.start_session() as session, session.start_transaction():
        for number in range(4):  # on one shard
            shop.orders.insert_one({"_id": number, "customer": 1}, session=session)
    run_once(spark, shop, tmp_path)
    rows = DeltaTable(tmp_path / BRONZE).to_pyarrow_table().sort_by("token")
    events = [row for row, kind in enumerate(rows["op"].to_pylist()) if kind == "c"]
    tokens = [rows["token"][row].as_py() for row in events]
    assert len({token[:18] for token in tokens}) == 1
    for row in events:
        rows = changed(rows, "namespace", row)
    write_deltalake(tmp_path / BRONZE, rows, mode="overwrite")

    record = JobFolder(str(tmp_path)).record()
    for since, compared in {
        tokens[0][:18]: tokens,
        tokens[1]: tokens[2:],
        ABOVE_ALL_TOKENS: [],  # the record was lost, and the job not started since
    }.items():
        (tmp_path / "job.json").write_text(json.dumps({**asdict(record), "since": since}))
        found = verify_job(spark, JobFolder(str(tmp_path)), shop.uri, [BRONZE])[BRONZE]
        different = [row["token"] for row in found.first if row["difference"] == "different"]
        assert different == compared, found
        assert ("no event yet of the time to compare" in found.remark) is (not compared)


DOCUMENT = {"_id": 1, "n": 1}
AFTER, BEFORE = "fullDocument", "fullDocumentBeforeChange"


def an_event(number: int, kind: str, **images: Any) -> dict[str, Any]:
    names = {"ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": 1}}
    update = {"updateDescription": {"updatedFields": {"n": 1}}} if kind == "update" else {}
    time = Timestamp(1_700_000_000, number)
    token = {"_data": event_token(time.time, number)}
    return {"_id": token, "operationType": kind, "clusterTime": time, **names, **update, **images}


def rows_of(
    spark: SparkSession, events: Sequence[Mapping[str, Any]], *, raw_documents: bool
) -> DataFrame:
    """Return events as rows of the source."""
    made = EventRows(raw_documents=raw_documents)
    batches = made.batches(run_of([bson.encode(event)]) for event in events)
    return spark.createDataFrame(pa.Table.from_batches(batches))


@pytest.mark.parametrize(
    ("options", "kind", "lost", "uncertain"),
    [
        ({AFTER: "whenAvailable"}, "update", AFTER, True),
        ({AFTER: "updateLookup"}, "update", AFTER, True),
        ({AFTER: "whenAvailable", "documents": "raw"}, "update", AFTER, True),
        ({BEFORE: "whenAvailable"}, "update", BEFORE, True),
        ({BEFORE: "whenAvailable"}, "delete", BEFORE, True),
        ({AFTER: "whenAvailable", BEFORE: "whenAvailable"}, "update", BEFORE, True),
        ({AFTER: "whenAvailable", BEFORE: "whenAvailable"}, "insert", AFTER, False),
        ({AFTER: "whenAvailable"}, "delete", BEFORE, False),
    ],
)
def test_an_image_that_the_servers_have_deleted_meanwhile_is_no_difference(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    kind: str,
    lost: str,
    uncertain: bool,
) -> None:
    """They keep images for a shorter time than events; the rest of the row is compared."""
    monkeypatch.setattr(stream_comparison, "RouterClient", Mock())
    images = dict.fromkeys({*options, lost} - {"documents"}, DOCUMENT)

    def rows(**given: Any) -> DataFrame:
        events = an_event(1, "insert", fullDocument=DOCUMENT), an_event(2, kind, **given)
        return rows_of(spark, events, raw_documents="documents" in options)

    stored = rows(**images)
    reader = Mock()
    reader.read.format().options().load.return_value = rows(**{**images, lost: None})
    events = stream_comparison.events_of(
        reader, {"uri": "mongodb://none", **options}, event_token(1, 1), AtTime(Timestamp(2**31, 1))
    )
    found = stream_comparison.bronze_differences(stored, events).collect()
    assert [set(row.fields) for row in found] == ([] if uncertain else [{"event", lost}])
    others = stored.withColumn("namespace", F.lit("shop.items"))
    found = stream_comparison.bronze_differences(others, events).collect()
    assert [row.fields[:1] for row in found] == [["namespace"]] * 2
