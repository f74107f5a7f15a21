"""The current table: what a batch costs while the table grows, beside delta-rs' own merge."""

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from bench.suite import medians
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


def batches_on(folder: Path, size: int) -> Iterator[dict[str, Any]]:
    """Measure batches on a new table of ``size`` rows, with keys of recent documents and of any."""
    chance = random.Random(size)
    number = 0
    for start in range(0, size, 50_000):
        apply(folder, [insert(key, chance) for key in range(start, start + 50_000)], number)
        number += 1
    for keys in ("recent", "random"):
        measured = []
        for _ in range(BATCHES):
            number += 1
            measured.append(batch(folder, size, number, keys, chance))
            size += CHANGES // 10
        rows = size // 10_000 * 10_000
        yield {"rows": rows, "keys": keys, **medians(measured), **merged(folder, keys, size)}


def batch(folder: Path, size: int, number: int, keys: str, chance: random.Random) -> dict[str, Any]:
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


def apply(folder: Path, events: Sequence[tuple[str, str, bytes]], number: int) -> None:
    """Apply events in this process, as a job's tasks and its driver do."""
    upsert = Upsert(staged(folder, events), Batch("bench", number))
    CurrentTable(str(folder)).apply_staged(None, upsert)


def staged(folder: Path, events: Sequence[tuple[str, str, bytes]]) -> ChangeReport:
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


def merged(folder: Path, keys: str, size: int) -> dict[str, float]:
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
    figures = {
        "merge_cpu": time.process_time() - cpu,
        "merge_seconds": time.perf_counter() - begin,
    }
    table.restore(table.version() - 1)
    return figures


def identifier(number: int) -> ObjectId:
    """Return the `_id` of a document: ObjectIds grow with time."""
    return ObjectId((_BEGIN + number // _TICKS).to_bytes(4, "big") + number.to_bytes(8, "big"))


def key_of(number: int) -> str:
    """Return the key in the table."""
    return json.dumps({"$oid": str(identifier(number))})


def insert(number: int, chance: random.Random, batch: int = 0) -> tuple[str, str, bytes]:
    """Return the type, token and BSON of a document's insert."""
    return event("insert", number, batch, fullDocument=document(number, chance))


def update(number: int, batch: int, chance: random.Random) -> tuple[str, str, bytes]:
    """Return the type, token and BSON of an update without a post-image."""
    changed = {"status": chance.choice(("paid", "sent", "done")), "batch": batch}
    description = {"updatedFields": changed, "removedFields": [], "truncatedArrays": []}
    return event("update", number, batch, updateDescription=description)


def event(kind: str, number: int, batch: int, **fields: Any) -> tuple[str, str, bytes]:
    """Return the type, token and BSON of an event of a document."""
    time_of = Timestamp(_BEGIN + 10_000_000 * min(batch, 1) + batch, 1 + number)
    token = high_water_mark(time_of)
    described = {"_id": {"_data": token}, "operationType": kind, "clusterTime": time_of}
    described |= {
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": identifier(number)},
    }
    return kind, token, bson.encode({**described, **fields})


def document(number: int, chance: random.Random) -> dict[str, Any]:
    """Return a document, about half of which compresses."""
    lines = [
        {"sku": f"SKU-{chance.randrange(10**6):06}", "quantity": chance.randrange(9)}
        for _ in range(5)
    ]
    made = {
        "_id": identifier(number),
        "customer": chance.randrange(10**6),
        "total": chance.random() * 100,
        "status": "new",
        "lines": lines,
        "note": os.urandom(60).hex(),
        "text": "",
    }
    made["text"] = "lorem ipsum " * ((DOCUMENT_BYTES - len(bson.encode(made))) // 12)
    return made
