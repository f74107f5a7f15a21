"""The tables of a job are compacted by a schedule, and a failure does not end the job."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_sink.errors import StreamError
from spark_sink.jobs import maintenance
from spark_sink.jobs.job_folder import CURRENT, NOTIFIED, JobFolder
from spark_sink.jobs.maintenance import Schedule, compact_tables
from spark_sink.jobs.tables_job import NOTIFICATIONS, appended_table
from spark_sink.tables.log_state import Batch
from tests.unit.spark_sink.tables.test_current_table import Stream, apply, documents_in


def test_small_files_are_compacted_when_it_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told, now = JobFolder(str(tmp_path)), io.StringIO(), [0.0]
    assert list(compact_tables(folder)) == []
    rows = NOTIFICATIONS.empty_table().from_pylist([{"id": "a"}], NOTIFICATIONS)
    for number in range(3):
        appended_table(folder, NOTIFIED).write_rows(rows, Batch("q", number))
    schedule = Schedule(folder, 7200, told, lambda: now[0])
    for moment in (3600.0, 7200.0, 7300.0):
        now[0] = moment
        schedule()
    assert told.getvalue() == "notifications: 3 files compacted into 1, 0 old ones deleted\n"
    assert appended_table(folder, NOTIFIED).log.count() == 3

    def fail(_folder: JobFolder) -> Iterator[str]:
        yield "bronze: done"
        raise StreamError("no space left")

    monkeypatch.setattr(maintenance, "compact_tables", fail)
    now[0] = 14_400.0
    schedule()
    assert told.getvalue().splitlines()[1:] == [
        "bronze: done",
        "the tables were not all compacted; the job continues: no space left",
    ]


def test_the_job_may_commit_while_its_tables_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stream, listed = JobFolder(str(tmp_path)), Stream(1), DeltaTable.vacuum
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
