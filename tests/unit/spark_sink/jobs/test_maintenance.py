"""The tables of a job are compacted by a schedule, and a failure does not end the job."""

import io
from pathlib import Path

import pytest

from spark_sink.errors import StreamError
from spark_sink.jobs import maintenance
from spark_sink.jobs.job_folder import NOTIFIED, JobFolder
from spark_sink.jobs.maintenance import Schedule, compact_tables
from spark_sink.jobs.tables_job import NOTIFICATIONS, appended_table
from spark_sink.tables.log_state import Batch


def test_small_files_are_compacted_when_it_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told, now = JobFolder(str(tmp_path)), io.StringIO(), [0.0]
    assert compact_tables(folder) == []
    rows = NOTIFICATIONS.empty_table().from_pylist([{"id": "a"}], NOTIFICATIONS)
    for number in range(3):
        appended_table(folder, NOTIFIED).write_rows(rows, Batch("q", number))
    schedule = Schedule(folder, 7200, told, lambda: now[0])
    for moment in (3600.0, 7200.0, 7300.0):
        now[0] = moment
        schedule()
    assert told.getvalue() == "notifications: 3 files compacted into 1\n"
    assert appended_table(folder, NOTIFIED).log.count() == 3

    def fail(_folder: JobFolder) -> list[str]:
        raise StreamError("no space left")

    monkeypatch.setattr(maintenance, "compact_tables", fail)
    now[0] = 14_400.0
    schedule()
    assert told.getvalue().endswith("the job continues: no space left\n")
