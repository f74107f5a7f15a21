"""The current table: what a batch of one change costs the driver while the table's files grow."""

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from bench.current_tables import Event, apply, insert, key_of, stage_events, update
from bench.kernel import memory
from bench.suite import Column, Options, Table, medians
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.parquet_parts import PartFile
from spark_sink.tables.table_state import Batch

FILES = (100, 1_000, 10_000, 100_000)
BATCHES, FILE_BYTES = 5, 100_000_000
ROWS = 10_000  # of each file

COLUMNS = (
    Column("files", "files", ","),
    Column("opening: CPU s", "open", ".2f"),
    Column("a batch of one change: CPU s", "batch", ".3f"),
    Column("KB committed", "committed", ",.1f"),
    Column("a batch without a change: CPU s", "empty", ".3f"),
    Column("KB committed ", "empty_committed", ",.1f"),
    Column("peak memory MB", "memory", ",.0f"),
)
NOTE = f"Medians of {BATCHES} batches without Spark. Of the files only the changed one exists."


def measure(options: Options) -> Table:
    """Measure one batch on tables of several numbers of files, each in a process of its own."""
    rows = []
    for count in FILES[: options.scaled(len(FILES), 2)]:
        print(f"a current table of {count:,} files")
        with tempfile.TemporaryDirectory() as at:
            document = in_process(make_table, at, count)
            rows.append(in_process(measure_batches, at, document))
    return Table("A current table whose files grow in number", COLUMNS, rows, NOTE)


def in_process(function: Any, *args: Any) -> Any:
    """Return the result of a function in a new process, whose peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def make_table(folder: str, count: int) -> int:
    """Make a table of `count` files, one of which exists; return the number of its document."""
    middle = count // 2 * ROWS
    apply(Path(folder), [insert(middle, random.Random(count))], 0)
    table = CurrentTable(folder)
    reports = [file_report(number) for number in range(count) if number != count // 2]
    table.log.replace(reports, table.form.file_schema, table.state)
    DeltaTable(table.address).create_checkpoint()
    return middle


def measure_batches(folder: str, document: int) -> dict[str, float]:
    """Return the figures of batches of a table, each the median of several."""
    begun = time.process_time()
    table = CurrentTable(folder)
    opened, chance, measured = time.process_time() - begun, random.Random(1), []
    for number in range(1, 2 * BATCHES, 2):
        seconds, size = measure_batch(table, number, [update(document, number, chance)])
        empty, empty_size = measure_batch(table, number + 1, [])
        committed = {"committed": size, "empty_committed": empty_size}
        measured.append({"batch": seconds, "empty": empty, **committed})
    peak = memory(os.getpid(), peak=True) / 1e6
    figures = {"files": table.log.files().num_rows, "open": opened, "memory": peak}
    return figures | medians(measured)


def measure_batch(table: CurrentTable, number: int, events: Sequence[Event]) -> tuple[float, float]:
    """Apply a batch as a job's driver does; return its seconds of CPU, and the KB of its commit."""
    before, begun = committed_kilobytes(table.address), time.process_time()
    table.reload()
    upsert = Upsert(stage_events(Path(table.address), events), Batch("bench", number))
    table.apply_staged(None, upsert)
    return time.process_time() - begun, committed_kilobytes(table.address) - before


def committed_kilobytes(address: str) -> float:
    """Return the KB of the table's log and states, without checkpoints."""
    files = [*Path(address, "_delta_log").iterdir(), *Path(address, "_mergerouter").iterdir()]
    return sum(file.stat().st_size for file in files if "checkpoint" not in file.name) / 1000


def file_report(number: int) -> PartFile:
    """Return what a task reports of a file that it has written."""
    moment = datetime.fromtimestamp(1_700_000_000 + number, UTC).isoformat()
    same = {"namespace": "shop.orders", "database": "shop", "collection": "orders"}
    same |= {"token": f"82{1_700_000_000 + number:08X}{1:08X}2B0429296E04", "clusterTime": moment}
    stats = {
        "numRecords": ROWS,
        "minValues": {**same, "key": key_of(number * ROWS)},
        "maxValues": {**same, "key": key_of(number * ROWS + ROWS - 1)},
        "nullCount": dict.fromkeys((*same, "key"), 0),
    }
    path = f"keyRange={number:012x}/part-{number:032x}.parquet"
    partition = {"keyRange": f"{number:012x}"}
    return PartFile(path, FILE_BYTES, partition, 1_700_000_000_000 + number, stats)
