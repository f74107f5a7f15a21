"""A job whose tables' logs others have cleaned up: it knows where it is, and goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_sink.errors import StreamError
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.point_in_time import versions_at
from spark_sink.jobs.rebuilding import rebuild_current
from tests.doubles.scripted_job import SIX, Script, check_tables, documents_in, follow


def of_delta_rs(folder: Path) -> None:
    """Clean up a log as delta-rs does, beyond a retention that has passed."""
    table = DeltaTable(folder)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 seconds"})
    table.create_checkpoint()
    for each in (folder / "_delta_log").glob("*.json"):
        os.utime(each, (0, 0))
    table.cleanup_metadata()


def all_commits(folder: Path) -> None:
    """Leave a checkpoint, and the commit at its version, as Spark's clean-up does."""
    table = DeltaTable(folder)
    table.create_checkpoint()
    for each in (folder / "_delta_log").glob("*.json"):
        if int(each.stem) < table.version():
            each.unlink()


def behind_others(folder: Path) -> None:
    """Compact and vacuum a table as others do, which say nothing of the job, and clean up."""
    table = DeltaTable(folder)
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    all_commits(folder)


@pytest.mark.parametrize("clean_up", [of_delta_rs, all_commits, behind_others])
def test_a_job_whose_logs_have_expired_goes_on(
    tmp_path: Path, clean_up: Callable[[Path], None]
) -> None:
    out, script = str(tmp_path / "job"), Script(5, size=1)
    follow(out, tmp_path / "first", script, batches=4)
    folder = JobFolder(out, str(tmp_path / "first"))
    last = folder.last_committed()
    assert last is not None
    count = script.before(last.offset)
    half, reached = script.time(count // 2), script.time(count)
    versions_at(folder, half)
    made = rebuild_current(None, folder, half, str(tmp_path / "before")).count()
    for name in SIX:
        clean_up(tmp_path / "job" / name)

    assert set(versions_at(folder, reached).versions) >= {"bronze", "messages", "current"}
    with pytest.raises(StreamError, match=r"has no versions of .*make the table again"):
        versions_at(folder, half)
    assert rebuild_current(None, folder, half, str(tmp_path / "then")).count() == made
    assert documents_in(str(tmp_path / "then")) == documents_in(str(tmp_path / "before"))
    documents = documents_in(out)
    shutil.rmtree(tmp_path / "job" / "current")
    rebuild_current(None, folder)
    assert documents_in(out) == documents
    follow(out, tmp_path / "another", script)
    check_tables(out, script)


@pytest.mark.parametrize(
    ("name", "has_checkpoint"), [("bronze", True), ("messages", False), ("current", True)]
)
def test_a_table_that_was_restored_is_not_continued_once_its_log_has_expired(
    tmp_path: Path, name: str, has_checkpoint: bool
) -> None:
    """No commit tells it any more, only the files."""
    out, script = str(tmp_path / "job"), Script(5)
    follow(out, tmp_path / "first", script, batches=3)
    table = DeltaTable(tmp_path / "job" / name)
    table.restore(table.version() - 1)
    behind_others(tmp_path / "job" / name)
    checkpoint = tmp_path / ("first" if has_checkpoint else "another")
    with pytest.raises(StreamError, match=f"older version of the table at .*{name} was restored"):
        follow(out, checkpoint, script)
