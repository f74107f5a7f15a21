"""Files that fail to be written: none is left over, and readers see whole ones only."""

import gc
import os
import random
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from spark_sink.errors import StreamError
from spark_sink.folders import Folder
from spark_sink.jobs.compaction import merge_small_files
from spark_sink.jobs.task_writer import TaskTables, TaskWriter
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.source.schema import schema_for
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.staged_changes import ChangeReport
from spark_sink.tables.table_state import Batch
from tests.doubles.table_changes import RandomChanges, documents_in, staged

_SPACE = 50_000
_ROWS = pa.table({"token": [os.urandom(100).hex() for _ in range(1000)]})


@contextmanager
def full_disk(error: type[Exception] = OSError, size: int = _SPACE) -> Iterator[None]:
    """Let writes beyond this size of a file fail, as they do on a full disk, with this error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(error, match="File too large"):
            yield
        gc.collect()  # pyarrow's writer closes its file once more, and fails again
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_append_or_compaction_leaves_no_file(tmp_path: Path) -> None:
    table = DeltaLog(str(tmp_path))
    with full_disk():
        table.append_rows(_ROWS, Batch("q", 0))
    assert files_in(tmp_path) == []
    for number in range(2):
        table.append_rows(_ROWS, Batch("q", number))
    before = files_in(tmp_path)
    with full_disk(StreamError):
        merge_small_files(table)
    assert files_in(tmp_path) == before
    assert merge_small_files(table) == (2, 1)
    assert DeltaLog(str(tmp_path)).count() == 2000


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_task_leaves_no_file_of_its_collections(tmp_path: Path) -> None:
    schema = schema_for(parse_options({"uri": "mongodb://router"}))
    row = {"operationType": "insert", "op": "c", "token": "82", "database": "shop"}
    row |= {"event": b"", "snapshot": False, "clusterTime": datetime(2026, 1, 31, tzinfo=UTC)}
    text = os.urandom(_SPACE).hex()

    def write() -> None:
        with TaskWriter(
            TaskTables({"bronze": str(tmp_path), "quarantine": str(tmp_path / "quarantine")}),
            schema,
            1,
        ) as writer:
            for name, document in (("shop.a", "{}"), ("shop.b", text), ("shop.c", "{}")):
                found = {**row, "namespace": name, "fullDocument": document}
                writer.add(pa.RecordBatch.from_pylist([found], arrow_schema(schema)))
            writer.close()

    with full_disk():
        write()
    assert files_in(tmp_path) == []


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_merge_leaves_no_file_and_is_repeated(tmp_path: Path) -> None:
    folder, stream = tmp_path / "current", RandomChanges(1)
    table = CurrentTable(str(folder))
    first = ChangeReport.total(staged(folder, [stream.change(1)]))
    table.apply_staged(None, Upsert(first, Batch("q", 0)))
    before = files_in(folder)
    text = random.Random(1).randbytes(_SPACE).hex()
    changes = ChangeReport.total(staged(folder, [stream.change(1, text=text)]))
    with full_disk():
        table.apply_staged(None, Upsert(changes, Batch("q", 1)))
    left = {path for path in files_in(folder) if path.parent.name != "_changes"}
    assert left == {*before}
    table.apply_staged(None, Upsert(changes, Batch("q", 1)))
    assert documents_in(folder) == stream.collections


def test_a_failed_file_of_a_folder_leaves_no_draft(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.write("job.json", "before")
    with full_disk(size=10):
        folder.write("job.json", "x" * 1000)
    assert [path.name for path in files_in(tmp_path)] == ["job.json"]
    assert folder.text("job.json") == "before"


def test_a_failed_commit_names_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        arrow = " \x1b[31m\u21b3\x1b[0m "
        raise DeltaError(f"Generic error{arrow}Unable to copy{arrow}No space left on device")

    monkeypatch.setattr("spark_sink.tables.delta_log.create_table_with_add_actions", fail)
    with pytest.raises(StreamError) as caught:
        DeltaLog(str(tmp_path)).append_rows(_ROWS, Batch("q", 0))
    assert str(caught.value) == (
        f"the table at {tmp_path} cannot be read or written: the disk is full. Free space, and "
        "start again; nothing is lost (Generic error: Unable to copy: No space left on device)"
    )


def test_a_reader_sees_a_file_as_it_was_or_as_it_is(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    texts = ["a" * 100_000, "b" * 100_000]
    folder.write("deep/file.json", texts[0])
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(
            lambda: [folder.write("deep/file.json", texts[turn % 2]) for turn in range(200)]
        )
        reads = 0
        while not written.done() or not reads:
            assert folder.text("deep/file.json") in texts
            reads += 1
        written.result()
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["file.json"]
