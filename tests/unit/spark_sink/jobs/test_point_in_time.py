"""Versions of a job's tables at one time, with whole transactions."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import bson
import pyarrow as pa
import pytest
from bson.binary import Binary
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from spark_sink.errors import StreamError
from spark_sink.events.positions import AtTime, Token, high_water_mark, to_offset
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.point_in_time import versions_at
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.delta_log import Batch

SECOND = 1_700_000_000
_SESSION = Binary.from_uuid(uuid.UUID(int=7))
Event = tuple[int, str, int | None]
"""The increment of an event's cluster time, the end of its token, and its transaction."""


def time(inc: int) -> Timestamp:
    return Timestamp(SECOND, inc)


def token(inc: int, end: str = "") -> str:
    return f"82{SECOND:08X}{inc:08X}2B042C0100296E5A1004{end}"


def write(folder: Path, number: int, end: AtTime | Token, events: list[Event]) -> None:
    """Append a batch to bronze."""
    rows = [
        {
            "token": token(inc, text),
            "event": bson.encode({"lsid": {"id": _SESSION}, "txnNumber": bson.Int64(txn or 0)}),
            "clusterTime": datetime.fromtimestamp(SECOND, UTC),
            "namespace": "shop.orders",
            "txnNumber": txn,
            "op": "u",
            "operationType": "update",
        }
        for inc, text, txn in events
    ]
    batch = Batch("q", number, to_offset(end))
    table = AppendTable(str(folder / "bronze"))
    schema = pa.schema([(name, pa.string()) for name in ("token", "namespace", "op")])
    schema = schema.append(pa.field("operationType", pa.string()))
    schema = schema.append(pa.field("event", pa.binary()))
    schema = schema.append(pa.field("clusterTime", pa.timestamp("us", "UTC")))
    schema = schema.append(pa.field("txnNumber", pa.int64()))
    table.write_rows(pa.Table.from_pylist(rows, schema), batch)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A job whose batches end in a transaction of two shards, and between equal times."""
    found = JobFolder(str(tmp_path))
    found.begin(JobRecord(tables=("bronze",)))
    write(tmp_path, 0, AtTime(time(3)), [(1, "", None), (2, "", None)])
    write(tmp_path, 1, AtTime(time(6)), [(4, "", 1), (5, "", 2)])
    write(tmp_path, 2, AtTime(time(8)), [(6, "", 2), (7, "", None)])
    write(tmp_path, 3, Token({"_data": token(9, "01")}), [(8, "", None), (9, "01", None)])
    write(tmp_path, 4, AtTime(time(20)), [(9, "02", None)])
    return found


@pytest.mark.parametrize(
    ("inc", "batch", "cut"),
    [(2, 0, 3), (4, 0, 3), (5, 0, 3), (6, 0, 3), (7, 2, 8), (9, 2, 8), (18, 2, 8), (19, 4, 20)],
)
def test_versions_hold_whole_transactions_and_times(
    folder: JobFolder, inc: int, batch: int, cut: int
) -> None:
    found = versions_at(folder, time(inc))
    assert (found.batch, found.cut) == (batch, time(cut))
    assert found.versions == {"bronze": batch}


def test_what_the_tables_do_not_have_is_told(folder: JobFolder, tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=r"have reached .* only"):
        versions_at(folder, time(20))
    with pytest.raises(StreamError, match="has no versions of"):
        versions_at(folder, time(1))
    table = DeltaTable(tmp_path / "bronze")
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(StreamError, match="have been deleted"):
        versions_at(folder, time(7))


def test_a_high_water_mark_has_no_event_of_its_time(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord(tables=("bronze",)))
    write(tmp_path, 0, Token({"_data": high_water_mark(time(3))}), [(2, "", None)])
    assert versions_at(folder, time(2)).cut == time(3)
    with pytest.raises(StreamError, match="have reached"):
        versions_at(folder, time(3))
