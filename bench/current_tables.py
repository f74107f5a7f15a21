"""The current table: what a batch costs while the table grows, beside delta-rs' own merge."""

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bson
import pyarrow as pa
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from bench.suite import Column, Options, Table, medians
from shard_client.bson.resume_token import high_water_mark
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.staged_changes import CHANGE_COLUMNS, ChangeReport, ChangeStage
from spark_sink.tables.table_state import Batch

CHANGES = 10_000
SIZES = (100_000, 1_000_000, 10_000_000)
DOCUMENT_BYTES = 600
BATCHES = 5
_BEGIN = 1_700_000_000
_TICKS = 1_000

Event = tuple[str, str, bytes]
"""The type, the token and the BSON of an event."""

COLUMNS = (
    Column("rows", "rows", ","),
    Column("keys", "keys"),
    Column("files", "files"),
    Column("MB", "megabytes", ",.0f"),
    Column("files written again", "rewritten"),
    Column("CPU s", "cpu", ".2f"),
    Column("s", "seconds", ".2f"),
    Column("merge of delta-rs: CPU s", "merge_cpu", ".2f"),
    Column("s ", "merge_seconds", ".2f"),
)
NOTE = (
    f"Medians of {BATCHES} batches in one process, without Spark: staging, merging and committing. "
    "A tenth of the changes are inserts. Recent: of the newest 20,000 documents, by ObjectIds."
)


def measure(options: Options) -> Table:
    """Measure batches on tables of several sizes."""
    rows: list[dict[str, Any]] = []
    for size in SIZES[: options.scaled(len(SIZES), 1)]:
        print(f"a current table of {size:,} rows")
        with TemporaryDirectory() as folder:
            rows += measure_rows(Path(folder) / "current", size)
    title = f"A batch of {CHANGES:,} changes of documents of {DOCUMENT_BYTES} bytes"
    return Table(title, COLUMNS, rows, NOTE)


def measure_rows(folder: Path, size: int) -> Iterator[dict[str, Any]]:
    """Measure batches on a new table of ``size`` rows, with keys of recent documents and of any."""
    chance, numbers = random.Random(size), count()
    for start in range(0, size, 50_000):
        new = [insert(key, chance) for key in range(start, start + 50_000)]
        apply(folder, new, next(numbers))
    for keys in ("recent", "random"):
        measured = []
        for _ in range(BATCHES):
            measured.append(measure_batch(folder, size, next(numbers), keys, chance))
            size += CHANGES // 10
        rows = size // 10_000 * 10_000
        yield {"rows": rows, "keys": keys, **medians(measured), **measure_merge(folder, keys, size)}


def measure_batch(
    folder: Path, size: int, number: int, keys: str, chance: random.Random
) -> dict[str, Any]:
    """Apply a batch, and return its figures."""
    lowest = size - 20_000 if keys == "recent" else 0
    old = [update(chance.randrange(lowest, size), number, chance) for _ in range(CHANGES * 9 // 10)]
    new = [insert(key, chance, number) for key in range(size, size + CHANGES // 10)]
    before = set(DeltaTable(folder).file_uris())
    begin, cpu = time.perf_counter(), time.process_time()
    apply(folder, old + new, number)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    table = DeltaTable(folder)
    sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist()
    return {
        "files": len(sizes),
        "megabytes": sum(sizes) / 1e6,
        "rewritten": len(before - set(table.file_uris())),
        "cpu": cpu,
        "seconds": seconds,
    }


def apply(folder: Path, events: Sequence[Event], number: int) -> None:
    """Apply events in this process, as a job's tasks and its driver do."""
    upsert = Upsert(stage_events(folder, events), Batch("bench", number))
    CurrentTable(str(folder)).apply_staged(None, upsert)


def stage_events(folder: Path, events: Sequence[Event]) -> ChangeReport:
    """Return what a task reports that has staged events."""
    if not events:
        return ChangeReport()
    columns = zip(*events, strict=True)
    kinds, tokens, raw = (pa.array(column) for column in columns)
    names = (pa.repeat(pa.scalar(text), len(events)) for text in ("shop", "orders"))
    rows = pa.RecordBatch.from_arrays([*names, kinds, tokens, raw], names=[*CHANGE_COLUMNS])
    stage = ChangeStage(str(folder))
    stage.add(rows)
    return stage.close()


def measure_merge(folder: Path, keys: str, size: int) -> dict[str, float]:
    """Return the figures of delta-rs' merge of as many rows into the same table, by key."""
    chance = random.Random(size)
    lowest = size - 20_000 if keys == "recent" else 0
    wanted = sorted({key_of(chance.randrange(lowest, size)) for _ in range(CHANGES)})
    table = DeltaTable(folder)
    rows = table.to_pyarrow_dataset().head(len(wanted))
    rows = rows.set_column(rows.schema.get_field_index("key"), "key", pa.array(wanted))
    begin, cpu = time.perf_counter(), time.process_time()
    (
        table.merge(rows, "t.key = s.key", source_alias="s", target_alias="t")
        .when_matched_update({"token": "s.token", "document": "s.document"})
        .when_not_matched_insert_all()
        .execute()
    )
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    table.restore(table.version() - 1)
    return {"merge_cpu": cpu, "merge_seconds": seconds}


def identifier(number: int) -> ObjectId:
    """Return the `_id` of a document: ObjectIds grow with time."""
    return ObjectId((_BEGIN + number // _TICKS).to_bytes(4, "big") + number.to_bytes(8, "big"))


def key_of(number: int) -> str:
    """Return the key in the table."""
    return json.dumps({"$oid": str(identifier(number))})


def insert(number: int, chance: random.Random, batch: int = 0) -> Event:
    """Return the insert of a document."""
    return event("insert", number, batch, fullDocument=document(number, chance))


def update(number: int, batch: int, chance: random.Random) -> Event:
    """Return an update without a post-image."""
    changed = {"status": chance.choice(("paid", "sent", "done")), "batch": batch}
    description = {"updatedFields": changed, "removedFields": [], "truncatedArrays": []}
    return event("update", number, batch, updateDescription=description)


def event(kind: str, number: int, batch: int, **fields: Any) -> Event:
    """Return an event of a document."""
    time_of = Timestamp(_BEGIN + 10_000_000 * min(batch, 1) + batch, 1 + number)
    token = high_water_mark(time_of)
    about = {"_id": {"_data": token}, "operationType": kind, "clusterTime": time_of}
    place = {"ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": identifier(number)}}
    return kind, token, bson.encode({**about, **place, **fields})


def document(number: int, chance: random.Random) -> dict[str, Any]:
    """Return a document, about half of which compresses."""
    lines = [
        {"sku": f"SKU-{chance.randrange(10**6):06}", "quantity": chance.randrange(9)}
        for _ in range(5)
    ]
    content = {
        "_id": identifier(number),
        "customer": chance.randrange(10**6),
        "total": chance.random() * 100,
        "status": "new",
        "lines": lines,
        "note": os.urandom(60).hex(),
        "text": "",
    }
    content["text"] = "lorem ipsum " * ((DOCUMENT_BYTES - len(bson.encode(content))) // 12)
    return content
