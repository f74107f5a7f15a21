"""Versions of a job's tables at one time, with whole transactions."""

import shutil
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.binary import Binary
from bson.timestamp import Timestamp
from deltalake import DeltaTable
from typer.testing import CliRunner

from shard_client.bson.resume_token import high_water_mark
from spark_sink.cli import job
from spark_sink.errors import StreamError
from spark_sink.events.positions import AtTime, Token
from spark_sink.jobs.history import restoration
from spark_sink.jobs.history.point_in_time import versions_at
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.options.scope import Scope
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.selections import MissingDocuments, ScopeGain
from spark_sink.source.offsets import Offset
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.table_state import Batch

SECOND = 1_700_000_000
_SESSION = Binary.from_uuid(uuid.UUID(int=7))
Event = tuple[int, str, int | None]
"""The increment of an event's cluster time, the end of its token, and its transaction."""


def time(inc: int) -> Timestamp:
    return Timestamp(SECOND, inc)


def token(inc: int, end: str = "") -> str:
    return f"82{SECOND:08X}{inc:08X}2B042C0100296E5A1004{end}"


def write(folder: JobFolder, number: int, end: AtTime | Token, events: list[Event]) -> None:
    """Append a batch of updates to bronze."""
    rows = []
    for inc, text, txn in events:
        row = change(inc, "update", "shop", "orders", lsid={"id": _SESSION}, txnNumber=txn or 0)
        row |= {"token": token(inc, text), "txnNumber": txn, "op": "u", "namespace": "shop.orders"}
        rows.append({**row, "clusterTime": datetime.fromtimestamp(SECOND, UTC)})
    append(folder, number, Offset(end), rows)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A job whose batches end in a transaction of two shards, and between equal times."""
    found = JobFolder(str(tmp_path))
    found.begin(JobRecord(tables=("bronze",)))
    write(found, 0, AtTime(time(3)), [(1, "", None), (2, "", None)])
    write(found, 1, AtTime(time(6)), [(4, "", 1), (5, "", 2)])
    write(found, 2, AtTime(time(8)), [(6, "", 2), (7, "", None)])
    write(found, 3, Token({"_data": token(9, "01")}), [(8, "", None), (9, "01", None)])
    write(found, 4, AtTime(time(20)), [(9, "02", None)])
    return found


@pytest.mark.parametrize(
    ("inc", "batch", "cut"),
    [(2, 0, 3), (4, 0, 3), (5, 0, 3), (6, 0, 3), (7, 2, 8), (9, 2, 8), (18, 2, 8), (19, 4, 20)],
)
def test_versions_hold_whole_transactions_and_times(
    folder: JobFolder, inc: int, batch: int, cut: int
) -> None:
    *found, versions = versions_at(folder, time(inc))
    assert found == [batch, time(cut)]
    assert {name: version for name, (version, _) in versions.items()} == {"bronze": batch}


def test_a_high_water_mark_has_no_event_of_its_time(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord(tables=("bronze",)))
    write(folder, 0, Token({"_data": high_water_mark(time(3))}), [(2, "", None)])
    assert versions_at(folder, time(2))[1] == time(3)
    with pytest.raises(StreamError, match="have reached"):
        versions_at(folder, time(3))


def test_a_batch_that_leaves_out_events_is_no_version_of_a_time(folder: JobFolder) -> None:
    row = change(30, "insert", "shop", "orders")
    append(folder, 5, Offset(AtTime(time(30)), sought=AtTime(time(20))), [row])
    assert versions_at(folder, time(29))[0] == 4
    with pytest.raises(StreamError, match="has left out the events from"):
        restoration.rebuild_table(None, folder, time(21), f"{folder.address}/then")
    then = restoration.rebuild_table(None, folder, time(19), f"{folder.address}/then")
    assert then.log.count() == 0


def test_a_table_that_is_made_again_names_what_was_not_read_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = JobFolder(str(tmp_path / "job"))
    folder.begin(JobRecord(options={"snapshotMode": "initial", "database": "shop"}))
    scope = Scope("shop")
    rename = change(2, "rename", "other", "x", to={"db": "shop", "coll": "items"})
    first = change(0, "snapshotEnd", None, None, clusterTime=time(0), readUntil=time(0))
    rows = [first, change(1, "insert", "shop", "orders", fullDocument={"_id": 1}), rename]
    request = SnapshotRequest("again", "incremental", MissingDocuments(("shop.late",)))
    gained = ScopeGain("again-9", token(3), scope, Scope("crm"))
    other = SnapshotRequest(gained.id, "incremental", gained)
    signals = SnapshotQueue(requests=(request, other), required_at=token(3))
    append(folder, 0, Offset(AtTime(time(4)), scope, snapshots=signals), rows)
    # The job is behind, so it has read the documents of a later time.
    read = change(
        5, "snapshotEnd", None, None, clusterTime=time(4), readUntil=time(8), requested="again"
    )
    named = bson.decode(read["event"])
    named["collections"] = [{"db": "shop", "coll": "items"}, {"db": "shop", "coll": "late"}]
    events = named, {**named, "requested": gained.id}
    ends = [{**read, "event": bson.encode(each)} for each in events]
    append(folder, 1, Offset(AtTime(time(7)), scope), ends)
    append(folder, 2, Offset(AtTime(time(9)), scope), [change(9, "drop", "shop", "none")])

    made = restoration.rebuild_table(None, folder, time(3), str(tmp_path / "then"))
    unread = {("shop", "items"): token(2), ("shop", "late"): token(3), gained: token(3)}
    assert made.state.unread == unread
    monkeypatch.setattr("spark_sink.spark_session.job_session", lambda *_: nullcontext())
    lacks = "collections of database 'shop' outside of database 'crm', shop.items, shop.late"
    lacks = f"it lacks documents of {lacks}: "
    for inc, lacking in ((3, lacks), (7, lacks), (8, "")):
        into = ["--into", str(tmp_path / f"printed{inc}"), "--out", folder.address]
        printed = CliRunner().invoke(job, ["rebuild", "--to", f"{SECOND},{inc}", *into])
        assert printed.exit_code == 0
        assert "has 1 documents" in printed.output
        assert (lacking in printed.output) if lacking else ("lacks" not in printed.output)


def test_no_table_is_made_of_a_bronze_that_has_lost_its_beginning(tmp_path: Path) -> None:
    """Other programs may delete old rows of bronze; a table of the later rows lacks documents."""
    folder = JobFolder(str(tmp_path / "job"))
    rows = [change(1, "insert", "shop", "orders", fullDocument={"_id": 1})]
    end = Offset(AtTime(time(9)), Scope("shop"))
    for mode, is_refused in (("initial", True), ("no_data", False)):
        folder.begin(JobRecord(options={"snapshotMode": mode, "database": "shop"}))
        if is_refused:
            append(folder, 0, end, rows)
        told = pytest.raises(StreamError, match="does not have the snapshot any more")
        with told if is_refused else nullcontext():
            restoration.rebuild_table(None, folder, time(5), str(tmp_path / f"{mode} then"))
        with told if is_refused else nullcontext():
            restoration.rebuild_table(None, folder)


def test_a_table_that_is_made_again_quarantines_no_event_twice(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord(options={"snapshotMode": "no_data", "database": "shop"}))
    update = change(1, "update", "shop", "orders", documentKey={"_id": 1})
    update["event"] = bson.encode(
        {**bson.decode(update["event"]), "updateDescription": {"updatedFields": {"n": 1}}}
    )
    append(folder, 0, Offset(AtTime(time(9)), Scope("shop")), [update])
    for _ in range(2):  # as the table was made at first, and after it was lost
        restoration.rebuild_table(None, folder)
        assert DeltaTable(tmp_path / "quarantine").to_pyarrow_table()["token"].to_pylist() == [
            token(1)
        ]
        insert = change(10, "insert", "shop", "orders", fullDocument={"_id": 2})
        append(folder, 1, Offset(AtTime(time(20)), Scope("shop")), [insert])
        shutil.rmtree(tmp_path / "current")


def change(
    inc: int, kind: str, database: str | None, collection: str | None, **fields: Any
) -> dict[str, Any]:
    """Return a row of bronze."""
    names = {"db": database, "coll": collection}
    event = {"_id": {"_data": token(inc)}, "operationType": kind, "ns": names, **fields}
    if "fullDocument" in fields:
        event["documentKey"] = {"_id": fields["fullDocument"]["_id"]}
    return {
        "token": token(inc),
        "event": bson.encode(event),
        "database": database,
        "collection": collection,
        "operationType": kind,
    }


def append(folder: JobFolder, number: int, end: Offset, rows: list[dict[str, Any]]) -> None:
    """Append a batch to bronze, and to the current table's log."""
    kinds = {"event": pa.binary(), "txnNumber": pa.int64()}
    names = ("token", "event", "database", "collection", "operationType", "txnNumber")
    names = (*names, "namespace", "op")
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
    schema = schema.append(pa.field("clusterTime", pa.timestamp("us", "UTC")))
    table = DeltaLog(folder.table("bronze"))
    table.append_rows(pa.Table.from_pylist(rows, schema), Batch("q", number, end.document))
