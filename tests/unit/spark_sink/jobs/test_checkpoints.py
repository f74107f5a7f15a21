"""Checkpoints beside a job's folder, which are made again from the tables."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from spark_sink.errors import OptionError, StreamError
from spark_sink.events.positions import AtTime
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.rebuilding import restore_checkpoint, seek
from spark_sink.signals.state import SignalState
from spark_sink.source.offsets import Offset
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.delta_log import Batch, DeltaLog


def write(folder: JobFolder, number: int, table: str = "bronze") -> None:
    batch = Batch("q", number, {"_data": f"82{number}"})
    AppendTable(folder.table(table)).write_rows(pa.table({"token": ["a"]}), batch)


def test_a_lost_checkpoint_is_made_again(tmp_path: Path) -> None:
    out, kept = str(tmp_path / "job"), tmp_path / "disk"
    folder = JobFolder(out, str(kept))
    assert restore_checkpoint(folder) is None  # there is no job yet
    folder.begin(JobRecord(tables=("bronze",)))
    assert restore_checkpoint(folder) is None  # nor a batch
    for number in range(3):
        write(folder, number)
    assert restore_checkpoint(folder) == 2
    assert sorted(file.name for file in (kept / "commits").iterdir()) == [
        "1"
    ]  # the last one is repeated
    assert not (tmp_path / "job" / "checkpoint").exists()
    assert restore_checkpoint(folder) is None  # it is not lost
    assert folder.query() == "q"

    # A later start knows where it is, and refuses what it cannot continue.
    later = JobFolder(out)
    assert later.checkpoint == str(kept)
    last = later.last_committed()
    assert last is not None
    assert (last.number, last.offset) == (1, {"_data": "821"})
    with pytest.raises(OptionError, match="writes the tables"):
        later.begin(JobRecord(tables=("current",)))
    shutil.rmtree(kept)
    assert restore_checkpoint(JobFolder(out)) == 2
    later.begin(JobRecord(tables=("bronze",)))
    assert JobFolder(out).checkpoint == str(kept)


def test_an_older_copy_of_a_checkpoint_is_made_again(tmp_path: Path) -> None:
    """With it, the job would leave out the batches whose numbers the tables have already."""
    folder = JobFolder(str(tmp_path / "job"))
    folder.begin(JobRecord(tables=("bronze",)))
    for number in range(3):
        write(folder, number)
    restore_checkpoint(folder)
    for number in range(3, 6):
        write(folder, number)
    (tmp_path / "job" / "checkpoint" / ".metadata.crc").write_text("of the older file")
    assert restore_checkpoint(folder) == 5
    assert [each.number for each in folder.batches()] == [4, 5]
    assert [path.name for path in (tmp_path / "job" / "checkpoint").glob(".*")] == []
    last = folder.last_committed()
    assert last is not None
    assert last.offset == {"_data": "824"}


def job_with_batches(where: Path, count: int = 3) -> JobFolder:
    folder = JobFolder(str(where))
    folder.begin(JobRecord(tables=("bronze", "current")))
    for number in range(count):
        write(folder, number)
        write(folder, number, "current")
    restore_checkpoint(folder)
    return folder


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize(
    ("table", "remedy"), [("current", "let job rebuild make it again"), ("bronze", "from a backup")]
)
def test_a_table_that_lacks_batches_is_not_continued(
    tmp_path: Path, is_lost: bool, table: str, remedy: str
) -> None:
    folder = job_with_batches(tmp_path / "job")
    shutil.rmtree(folder.table(table))
    if not is_lost:
        write(folder, 0, table)
    text = f"{table} lacks batches that the job has written to it: .*{remedy}"
    with pytest.raises(OptionError, match=text):
        restore_checkpoint(folder)


@pytest.mark.parametrize("table", ["current", "bronze"])
@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("by_time", [True, False])
def test_a_table_that_was_restored_is_not_continued(
    tmp_path: Path, table: str, has_checkpoint: bool, by_time: bool
) -> None:
    """It knows the numbers of the batches that its rows lack, and would never take them again."""
    folder = job_with_batches(tmp_path / "job")
    restored = DeltaTable(folder.table(table))
    of_first = datetime.fromtimestamp(restored.history()[-1]["timestamp"] / 1000, UTC)
    restored.restore(of_first if by_time else 0)
    if not has_checkpoint:
        shutil.rmtree(folder.checkpoint)
    with pytest.raises(StreamError, match=f"older version of the table at .*{table} was restored"):
        restore_checkpoint(folder)
    # The newest version, restored in turn, has all batches.
    restored.restore(2)
    assert DeltaLog(folder.table(table)).position()["batch"] == 2
    assert restore_checkpoint(folder) == (None if has_checkpoint else 2)


def test_a_table_that_is_restored_while_the_job_runs_gets_no_more_batches(tmp_path: Path) -> None:
    table = AppendTable(str(tmp_path))
    rows = pa.table({"token": ["a"]})
    for number in range(2):
        table.write_rows(rows, Batch("q", number))
    DeltaTable(tmp_path).restore(0)
    with pytest.raises(StreamError, match="was restored"):
        table.write_rows(rows, Batch("q", 2))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 1


def test_the_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    folder = job_with_batches(tmp_path / "job")
    (tmp_path / "job" / "checkpoint" / "metadata").write_text('{"id": "other"}')
    with pytest.raises(OptionError, match=r"is not that of the tables .*: remove it"):
        restore_checkpoint(folder)
    shutil.rmtree(folder.checkpoint)
    assert restore_checkpoint(folder) == 2


def test_a_checkpoint_in_the_folder_moves_with_it(tmp_path: Path) -> None:
    JobFolder(str(tmp_path / "a")).begin(JobRecord())
    (tmp_path / "a").rename(tmp_path / "b")
    assert JobFolder(str(tmp_path / "b")).checkpoint == str(tmp_path / "b" / "checkpoint")


def end_at(seconds: int) -> dict[str, Any]:
    return Offset(AtTime(Timestamp(seconds, 1))).write()


def test_a_seek_may_be_corrected_until_the_job_has_been_started(tmp_path: Path) -> None:
    folder, table = JobFolder(str(tmp_path)), AppendTable(str(tmp_path / "bronze"))
    folder.begin(JobRecord(tables=("bronze",)))
    rows = pa.table({"token": ["a"]})
    table.write_rows(rows, Batch("q", 0, end_at(100)))
    folder.write_checkpoint("q", {0: end_at(100), 1: end_at(300)}, 0)  # 1 was only planned
    for seconds in (500, 400, 200):
        seek(folder, f"{seconds},1")
        assert folder.batches()[-1].number == 1
        assert folder.offset(1)["startAtOperationTime"] == {"$timestamp": {"t": seconds, "i": 1}}
    ahead = int(time.time()) + 3600
    with pytest.raises(OptionError, match="is in the future"):
        seek(folder, f"{ahead},1")
    for seconds in (50, 100):
        with pytest.raises(OptionError, match="before the job's position"):
            seek(folder, f"{seconds},1")

    # An interrupted batch is in one of the tables: its events would be there twice.
    table.write_rows(rows, Batch("q", 1, end_at(300)))
    with pytest.raises(OptionError, match="before the job's position"):
        seek(folder, "250,1")
    seek(folder, "400,1")
    with pytest.raises(OptionError, match="before the job's position"):
        seek(folder, "250,1")


@pytest.mark.parametrize(("seconds", "told"), [(150, ""), (300, ", without the signals")])
def test_a_seek_moves_the_position_in_the_collection_of_signals(
    tmp_path: Path, seconds: int, told: str
) -> None:
    """Otherwise each later start ends with a lost history, also after another seek."""
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord(tables=("bronze",)))
    signals = SignalState(("a",), position=AtTime(Timestamp(200, 1)))
    folder.write_checkpoint("q", {0: Offset(AtTime(Timestamp(100, 1)), signals=signals).write()}, 0)
    for _ in range(2):
        assert told in seek(folder, f"{seconds},1")
        sought = Offset.read(folder.offset(1))
        assert sought.signals == (replace(signals, position=None) if told else signals)


def test_a_seek_follows_a_batch_that_only_spark_has_not_committed(tmp_path: Path) -> None:
    """Otherwise the notifications of a batch that does not exist would stay."""
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord(tables=("bronze",)))
    rows = pa.table({"token": ["a"]})
    for number, seconds in ((0, 100), (1, 200)):
        for name in ("bronze", "notifications"):
            batch = Batch("q", number, end_at(seconds))
            AppendTable(folder.table(name)).write_rows(rows, batch)
    folder.write_checkpoint("q", {0: end_at(100), 1: end_at(200)}, 0)
    for seconds in (300, 250):
        seek(folder, f"{seconds},1")
        assert [each.number for each in folder.batches()] == [0, 1, 2]
        assert folder.last_committed() == folder.batches()[1]
        assert folder.offset(1) == end_at(200)
        assert folder.offset(2)["startAtOperationTime"] == {"$timestamp": {"t": seconds, "i": 1}}
