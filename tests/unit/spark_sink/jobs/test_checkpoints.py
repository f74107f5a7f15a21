"""Checkpoints beside a job's folder, which are made again from the tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.errors import OptionError
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.rebuilding import restore_checkpoint
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.delta_log import Batch


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


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_table_that_lacks_batches_is_not_continued(tmp_path: Path, is_lost: bool) -> None:
    folder = JobFolder(str(tmp_path / "job"))
    folder.begin(JobRecord(tables=("bronze", "current")))
    for number in range(3):
        write(folder, number)
        write(folder, number, "current")
    restore_checkpoint(folder)
    shutil.rmtree(folder.table("current"))
    if not is_lost:
        write(folder, 0, "current")
    with pytest.raises(OptionError, match="current lacks batches that the job has written"):
        restore_checkpoint(folder)


def test_a_checkpoint_in_the_folder_moves_with_it(tmp_path: Path) -> None:
    JobFolder(str(tmp_path / "a")).begin(JobRecord())
    (tmp_path / "a").rename(tmp_path / "b")
    assert JobFolder(str(tmp_path / "b")).checkpoint == str(tmp_path / "b" / "checkpoint")
