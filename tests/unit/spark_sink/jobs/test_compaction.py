"""The tables of a job are compacted by a schedule, and a failure does not end the job."""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from spark_sink.console import lines_of_job
from spark_sink.jobs import compaction
from spark_sink.jobs.compaction import compact_tables, compaction_beside
from spark_sink.jobs.history.point_in_time import versions_at
from spark_sink.jobs.history.restoration import rebuild_table
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import CURRENT, NOTIFICATION_COLUMNS, NOTIFICATIONS
from spark_sink.jobs.report.progress import printed_progress
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.tables import table_version
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import REPORT_PROGRESS
from spark_sink.tables.table_state import Batch
from tests.doubles.scripted_job import Script, ScriptedJob, check_tables, follow
from tests.doubles.table_changes import RandomChanges, apply, documents_in
from tests.harness.until import wait_for


def notify(folder: JobFolder, number: int) -> None:
    """Append a notification, of the batch with this number."""
    rows = NOTIFICATION_COLUMNS.empty_table().from_pylist([{"id": "a"}], NOTIFICATION_COLUMNS)
    DeltaLog(folder.table(NOTIFICATIONS)).append_rows(rows, Batch("q", number))


def test_small_files_are_compacted_beside_a_job_and_a_failure_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, printed = JobFolder(str(tmp_path)), [""]
    assert list(compact_tables(folder)) == []
    monkeypatch.setattr(compaction, "_PORTION_FILES", 2)
    for number in range(3):
        notify(folder, number)

    def has_printed(line: str) -> bool:
        printed[0] += capsys.readouterr().err
        return line in printed[0]

    def wait_for_line(line: str) -> None:
        wait_for(lambda: has_printed(line), line)

    with lines_of_job("shop.orders"), compaction_beside(folder, 0.05):
        compacted = "notifications: 3 files compacted into 1, 0 old ones deleted\n"
        wait_for_line(f"shop.orders: {compacted}")
        assert DeltaLog(folder.table(NOTIFICATIONS)).count() == 3
        for damaged in Path(folder.table(NOTIFICATIONS)).glob("*.parquet"):
            os.truncate(damaged, damaged.stat().st_size // 2)
        notify(folder, 3)
        wait_for_line(
            "shop.orders: the tables were not all compacted; the job continues: the table"
        )
    threads = {thread.name for thread in threading.enumerate()}
    assert "compaction" not in threads


def test_starts_that_are_shorter_than_the_interval_compact_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, started = JobFolder(str(tmp_path)), time.monotonic()
    notify(folder, 0)
    printed = ""
    while "compacted into" not in printed and time.monotonic() - started < 30:
        with compaction_beside(folder, 2):
            time.sleep(0.5)
        printed += capsys.readouterr().err
    assert "compacted into" in printed
    assert time.monotonic() - started > 2
    with compaction_beside(folder, 60):
        time.sleep(0.5)
    assert "compacted into" not in capsys.readouterr().err


def test_a_compaction_that_ends_its_process_is_not_begun_by_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = JobFolder(str(tmp_path))
    notify(folder, 0)
    monkeypatch.setattr(compaction, "merge_small_files", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        [*compact_tables(folder)]
    assert compaction._until_next(folder, 3600) > 3500


def test_a_stop_ends_a_compaction_after_the_portion_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = JobFolder(str(tmp_path)), iter([False, False, False, True])
    monkeypatch.setattr(compaction, "_PORTION_FILES", 2)
    for number in range(6):
        notify(folder, number)
    [line] = compact_tables(folder, lambda: next(asked, True))
    assert line == "notifications: 6 files compacted into 5, 0 old ones deleted"


def test_the_job_may_commit_while_its_tables_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stream, listed = JobFolder(str(tmp_path)), RandomChanges(1), DeltaTable.vacuum
    current, numbers = tmp_path / CURRENT, iter(range(99))
    apply(current, stream.changes(50), next(numbers))
    properties = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    DeltaTable(current).alter.set_table_properties(properties)

    def slow(table: DeltaTable, *args: Any, **options: Any) -> list[str]:
        found = listed(table, *args, **options)
        apply(current, stream.changes(50), next(numbers))
        return found

    monkeypatch.setattr(DeltaTable, "vacuum", slow)
    for _ in range(3):
        assert list(compact_tables(folder))[-1].startswith("current: ")
        assert documents_in(current) == stream.collections
    assert next(numbers) > 3


def test_long_work_is_told_in_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with printed_progress(lambda: now[0]):
        for done in range(1, 30):
            now[0] = float(done)
            REPORT_PROGRESS.get()("files merged", 1000 * done, 30_000)
    REPORT_PROGRESS.get()("files merged", 30_000, 30_000)
    assert capsys.readouterr().err.splitlines() == [
        "files merged: 10,000 of 30,000",
        "files merged: 20,000 of 30,000",
    ]


# What is done with a job's tables, and what is told of it.
LONG: dict[str, tuple[Callable[[JobFolder, Script], Any], set[str]]] = {
    "compact": (
        lambda folder, _: list(compact_tables(folder)),
        {"small files of bronze compacted", "old files of current deleted"},
    ),
    "vacuum": (
        lambda folder, _: DeltaLog(folder.table(CURRENT)).vacuum(),
        {"old files of current deleted"},
    ),
    "at": (
        lambda folder, script: versions_at(folder, script.time(30)),
        {"replaced files of bronze looked up"},
    ),
    "rebuild": (
        lambda folder, script: rebuild_table(None, folder, script.time(30), folder.table("then")),
        {"parts of bronze read", "files merged"},
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_how_far_long_work_is_is_told_from_within(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, folder = Script(1, size=1), JobFolder(str(tmp_path / "job"))
    follow(folder.address, tmp_path / "checkpoint", script)
    for module, limit in (
        (table_version, "_PATHS_LOOKED_UP"),
        (compaction, "_PORTION_FILES"),
        (table_version, "_SCAN_BYTES"),
    ):
        monkeypatch.setattr(module, limit, 2)
    if name in ("compact", "vacuum"):
        DeltaLog(folder.table(CURRENT)).keep_files(0)
    if name == "at":
        assert list(compact_tables(folder))
    work, expected = LONG[name]
    told: dict[str, list[tuple[int, int]]] = defaultdict(list)
    token = REPORT_PROGRESS.set(lambda what, done, total: told[what].append((done, total)))
    try:
        work(folder, script)
    finally:
        REPORT_PROGRESS.reset(token)
    assert told.keys() >= expected
    for what in expected:
        steps = told[what]
        assert all(before < after for (before, _), (after, _) in pairwise(steps)), steps
        assert {total for _, total in steps} == {steps[-1][0]}
    assert max(map(len, told.values())) > 2
    check_tables(folder.address, script)


def test_old_files_are_deleted_and_counted_once(tmp_path: Path) -> None:
    folder, stream = JobFolder(str(tmp_path)), RandomChanges(1)
    for number in range(5):
        apply(tmp_path / CURRENT, stream.changes(20), number)
    log = DeltaLog(folder.table(CURRENT))
    log.keep_files(0)
    assert [log.vacuum(), log.vacuum()] == [4, 0]
    assert list(compact_tables(folder))[-1] == f"{CURRENT}: 0 old files deleted"
    assert documents_in(tmp_path / CURRENT) == stream.collections


def test_what_a_killed_task_has_staged_is_removed_with_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = ScriptedJob.written

    def second_attempt(job: ScriptedJob, batch: Batch) -> TaskReport:
        assert written(job, batch).changes.groups
        return written(job, batch)

    monkeypatch.setattr(ScriptedJob, "written", second_attempt)
    follow(str(tmp_path / "job"), tmp_path / "checkpoint", Script(1), batches=3)
    assert [*tmp_path.glob("job/current/_changes/*")] == []
