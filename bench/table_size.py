"""The current table: what a batch of one change costs the driver while the table's files grow."""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.current_tables import apply, insert, key_of, staged, update
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.log_state import Batch

FILES = (100, 1_000, 10_000, 100_000)
BATCHES = 5
FILE_BYTES = 100_000_000
ROWS = 10_000
"""The documents that each file of the table stands for."""

COLUMNS = (
    Column("files", "files", ","),
    Column("opening: CPU s", "open", ".2f"),
    Column("a batch of one change: CPU s", "batch", ".3f"),
    Column("KB committed", "committed", ",.1f"),
    Column("a batch without a change: CPU s", "empty", ".3f"),
    Column("KB committed ", "empty_committed", ",.1f"),
    Column("peak memory MB", "memory", ",.0f"),
)


def run(options: Options) -> Outcome:
    """Measure one batch on tables of several numbers of files, each in a process of its own."""
    rows = []
    for count in FILES[: options.scaled(len(FILES), 2)]:
        options.say(f"a table of {count:,} files")
        with tempfile.TemporaryDirectory() as folder:
            rows.append(in_process(measured, in_process(made, Path(folder) / "current", count)))
    table = Table(
        "A current table whose files grow in number",
        COLUMNS,
        rows,
        note=f"Medians of {BATCHES} batches in one process, without Spark. Only the file that the "
        "batches change exists: the log has the others with names, statistics and sizes of real "
        "files. Committed: the log and the state. Memory: of the whole process.",
    )
    series: dict[str, list[tuple[Any, float]]] = {
        text: [(row["files"], row[name]) for row in rows]
        for text, name in (("one change", "batch"), ("no change", "empty"), ("opening", "open"))
    }
    plot = Plot("table_size", "CPU of the driver", "files", "s", series, log_x=True)
    return Outcome([table], [plot])


SUITE = Suite("table_size", "What does a batch cost while a table's files grow in number?", run)


def in_process(function: Any, *args: Any) -> Any:
    """Return the result of a function in a new process, whose peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def made(folder: Path, count: int) -> tuple[Path, int]:
    """Make a table of `count` files, one of which exists; return it, and that file's document."""
    middle = count // 2 * ROWS
    apply(folder, [insert(middle, random.Random(count))], 0)
    table = CurrentTable(str(folder))
    parts = [part(number) for number in range(count) if number != count // 2]
    table.log.replace(parts, table.form.stored, table.state.document)
    table.log.checkpoint()
    return folder, middle


def measured(made_table: tuple[Path, int]) -> dict[str, float]:
    """Return the figures of batches of a table, each the median of several."""
    folder, document = made_table
    begun = time.process_time()
    table = CurrentTable(str(folder))
    opened, chance, found = time.process_time() - begun, random.Random(1), []
    for number in range(1, 2 * BATCHES, 2):
        one = batch(table, number, [update(document, number, chance)])
        none = batch(table, number + 1, [])
        found.append(
            {"batch": one[0], "committed": one[1], "empty": none[0], "empty_committed": none[1]}
        )
    figures = {name: sorted(each[name] for each in found)[BATCHES // 2] for name in found[0]}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    files = table.log.files().num_rows
    return {"files": files, "open": opened, **figures, "memory": memory}


def batch(
    table: CurrentTable, number: int, events: Sequence[tuple[str, str, bytes]]
) -> tuple[float, float]:
    """Apply a batch as a job's driver does; return its seconds of CPU, and the KB of its commit."""
    before, begun = committed(table.address), time.process_time()
    table.reload()
    table.apply_staged(None, staged(Path(table.address), events), Batch("bench", number))
    return time.process_time() - begun, committed(table.address) - before


def committed(address: str) -> float:
    """Return the KB of the table's log and states, without checkpoints."""
    files = (
        each for name in ("_delta_log", "_mergerouter") for each in Path(address, name).iterdir()
    )
    return sum(each.stat().st_size for each in files if "checkpoint" not in each.name) / 1000


def part(number: int) -> dict[str, Any]:
    """Return what a task reports of a file that it has written."""
    first, last = number * ROWS, number * ROWS + ROWS - 1
    name = f"{number:012x}"
    moment = datetime.fromtimestamp(1_700_000_000 + number, UTC).isoformat()
    same = {"namespace": "shop.orders", "database": "shop", "collection": "orders"}
    same |= {"token": f"82{1_700_000_000 + number:08X}{1:08X}2B0429296E04", "clusterTime": moment}
    stats = {
        "numRecords": ROWS,
        "minValues": {**same, "key": key_of(first)},
        "maxValues": {**same, "key": key_of(last)},
        "nullCount": dict.fromkeys((*same, "key"), 0),
    }
    return {
        "path": f"keyRange={name}/part-{number:032x}.parquet",
        "size": FILE_BYTES,
        "partition": json.dumps({"keyRange": name}),
        "modified": 1_700_000_000_000 + number,
        "stats": json.dumps(stats),
    }
