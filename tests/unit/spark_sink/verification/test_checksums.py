"""Every damage to every column of every table of a job is found by the checksum, without a cluster.

Before, `verify` found rows that bronze lacked or had twice, and documents of current.
"""

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType

from spark_sink.debezium.message_batches import MESSAGE_ROWS
from spark_sink.jobs.compaction import merge_small_files
from spark_sink.jobs.job_tables import NOTIFICATION_COLUMNS, PARTITIONS, dated_schema
from spark_sink.jobs.task_writer import TaskTables, TaskWriter
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.event_rows import EventRows
from spark_sink.rows.typed_documents import TypedDocuments
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.merge_task import UNAPPLIED
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch
from spark_sink.verification.verify_job import Outcome, checksum_difference, exchanged_files
from tests.doubles.event_history import runs_of
from tests.doubles.table_damages import damages

FORMS = {
    "current": TableForm(),
    "current, typed": TableForm(StructType([]), infers=True),
    "current, deletes kept": TableForm(keeps_deleted=True),
    "current, typed, deletes kept": TableForm(StructType([]), infers=True, keeps_deleted=True),
}
DOCUMENTS = (
    StructType()
    .add("_id", LongType())
    .add("n", IntegerType())
    .add("tags", ArrayType(StringType()))
    .add("more", MapType(StringType(), IntegerType()))
    .add("part", StructType().add("a", IntegerType()).add("b", StringType()))
)
TABLES = (
    *("bronze", "bronze, typed", "messages", "transactions", "notifications", "quarantine"),
    *FORMS,
)


def event(number: int, kind: str, identifier: int, **fields: Any) -> RawBSONDocument:
    time = Timestamp(1_700_000_000, number)
    token = f"82{time.time:08X}{time.inc:08X}2B042C0100296E5A1004{7:032X}46645F696400{number:04X}04"
    found: dict[str, Any] = {"_id": {"_data": token}, "operationType": kind, "clusterTime": time}
    found |= {"wallTime": datetime(2026, 1, 31, tzinfo=UTC), **fields}
    found |= {"ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": identifier}}
    return RawBSONDocument(bson.encode(found))


def events(batch: int) -> list[RawBSONDocument]:
    """The events of a batch: a snapshot's rows, changes, and those of a transaction."""
    session = {"lsid": {"id": bson.Binary(b"s" * 16, 4)}, "txnNumber": bson.Int64(batch)}
    found = []
    for number in range(8):
        document = {"_id": number, "n": batch, "tags": ["a", "b"], "more": {"x": 1}}
        document |= {"part": {"a": 1, "b": "c"}, "price": 2.5, "left": None}
        kind = ("read" if batch == 0 else "replace", "insert", "replace")[number % 3]
        of = {**session, "fullDocumentBeforeChange": document} if number > 5 else {}
        found.append(event(10 * batch + number + 1, kind, number, fullDocument=document, **of))
    description = {"updatedFields": {"n": 7}, "removedFields": []}
    found.append(event(10 * batch + 9, "update", 1, updateDescription=description))
    found.append(event(10 * batch + 10, "delete", 2))
    return found


def written(folder: Path, name: str) -> DeltaLog:
    """A table of two batches, written as the tasks and the driver of a job write it."""
    log = DeltaLog(str(folder))
    for number in range(2):
        batch = Batch("q", number, {"n": number})
        address, typed = str(folder), TypedDocuments(DOCUMENTS) if "typed" in name else None
        rows = EventRows(typed=typed if name.startswith("bronze") else None)
        written = {name.partition(",")[0], "transactions", "quarantine"}
        tables = TaskTables(dict.fromkeys(written, address), {"prefix": "p"})
        with TaskWriter(tables, rows.schema, number) as writer:
            for each in rows.batches(runs_of(events(number))):
                writer.add(each)
            report = writer.close()
        match name:
            case "bronze" | "bronze, typed":
                table = DeltaLog(address, PARTITIONS["bronze"])
                table.append(report.parts["bronze"], dated_schema(arrow_schema(rows.schema)), batch)
            case "messages":
                table = DeltaLog(address, PARTITIONS["messages"])
                table.append(report.parts["messages"], dated_schema(MESSAGE_ROWS), batch)
            case "transactions":
                DeltaLog(address).append_rows(report.transactions.rows(), batch)
            case "notifications":
                row = {"id": f"{number}", "aggregate_type": "a", "type": "t", "timestamp": number}
                row["additional_data"] = [("k", "v"), ("l", "w")]
                told = pa.Table.from_pylist([row] * 2, NOTIFICATION_COLUMNS)
                DeltaLog(address).append_rows(told, batch)
            case "quarantine":
                schema = arrow_schema(UNAPPLIED)
                row = {each.name: str(number) for each in schema if each.type == pa.string()}
                row |= {"clusterTime": number, "event": b"e"}
                told = pa.Table.from_pylist([row] * 2, schema).drop_columns(["batch"])
                DeltaLog(address).append_rows(told, batch)
            case _:
                current = CurrentTable(address, form=FORMS[name])
                assert report.changes is not None
                quarantine = DeltaLog(str(folder.with_name("unapplied")))
                current.apply_staged(None, Upsert(report.changes, batch, quarantine))
    log.reload()
    return DeltaLog(str(folder))


@pytest.mark.parametrize("name", TABLES)
def test_every_damage_to_every_column_is_found(name: str, tmp_path: Path) -> None:
    log = written(tmp_path / "table", name)
    assert checksum_difference(None, log) is None
    merge_small_files(log)
    log.vacuum(full=True)
    log = DeltaLog(log.address)
    assert checksum_difference(None, log) is None
    rows = DeltaTable(log.address).to_pyarrow_table()
    assert rows.num_rows >= 2
    filled = {each for each in rows.column_names if rows[each].null_count < rows.num_rows}

    def found_in(table: pa.Table) -> Any:
        write_deltalake(log.address, table, mode="overwrite")
        return checksum_difference(None, DeltaLog(log.address))

    tried = set()
    for what, damaged in damages(rows, random.Random(name)):
        tried.add(what.split()[0])
        assert found_in(damaged) is not None, what
    assert tried >= filled - {KEY_RANGE}
    assert found_in(rows.take(pc.sort_indices(rows[rows.column_names[0]]))) is None


def test_files_that_have_changed_places_are_found(tmp_path: Path) -> None:
    log = written(tmp_path / "table", "bronze")
    assert exchanged_files(log) == []
    first, second = (tmp_path / "table" / path for path in sorted(log.paths()))
    of_first = first.read_bytes()
    first.write_bytes(second.read_bytes())
    assert len(exchanged_files(log)) == 1
    second.write_bytes(of_first)
    assert sorted(exchanged_files(log)) == sorted(log.paths())
    second.unlink()
    assert len(exchanged_files(log)) == 2


def test_an_outcome_shows_the_first_differences_of_all_its_comparisons() -> None:
    outcome = Outcome()
    for number in (2, 30, 1):
        outcome.add(number, ({"path": f"{number}-{index}"} for index in range(number)), 20)
    assert outcome.count == 33
    assert [row["path"] for row in outcome.first] == ["2-0", "2-1", *(f"30-{n}" for n in range(18))]
