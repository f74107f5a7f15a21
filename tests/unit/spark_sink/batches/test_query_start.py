"""The start of a query: its imports and its time; and which reports of tasks it takes."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
from bson.timestamp import Timestamp

from spark_sink.batches.query_start import LAUNCH_SECONDS, cluster_time_at, query_started
from spark_sink.batches.task_reports import ReadStats, ReportInbox, report
from spark_sink.events.positions import AtTime, after


def test_the_start_time_of_a_process_is_found() -> None:
    before = time.time()
    script = "import time; time.sleep(0.5); from spark_sink.batches import query_start as q\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}print(q.process_start(), q._IMPORTED)"],
        capture_output=True,
        text=True,
        check=True,
    )
    born, imported = map(float, done.stdout.split())
    assert before - 0.1 <= born <= imported - 0.5


def test_a_query_starts_between_its_process_s_start_and_the_load() -> None:
    assert query_started(loaded=100.0, born=101.0) == 100.0
    assert query_started(loaded=100.0, born=900.0) == 900.0 - LAUNCH_SECONDS


@pytest.mark.parametrize(
    ("moment", "skew", "expected"),
    [
        (1000.9, 0.0, Timestamp(1000, 0)),
        (1000.9, 3.2, Timestamp(1004, 0)),
        (1000.9, -3.0, Timestamp(997, 0)),
        (2000.0, 0.0, Timestamp(1500, 8)),  # without writes since
    ],
)
def test_the_beginning_is_not_after_the_start(moment, skew, expected) -> None:
    assert cluster_time_at(moment, skew, Timestamp(1500, 7)) == expected


def test_the_time_after_the_last_tick_of_a_second_is_the_next_second() -> None:
    last = Timestamp(1500, 2**32 - 1)
    assert cluster_time_at(2000.0, 0.0, last) == Timestamp(1501, 0)
    assert after(last) == AtTime(Timestamp(1501, 0))


def test_a_start_that_only_checks_its_options_imports_no_reader() -> None:
    heavy = ("pyarrow", "spark_sink.source.readers", "spark_sink.mongodb_sink.writers")
    imported = f"print([m for m in {heavy} if m in sys.modules])"
    script = f"import sys, spark_sink.source.data_source; {imported}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_only_the_reports_of_all_tasks_of_the_last_batch_count() -> None:
    inbox = ReportInbox(("127.0.0.1", 1))
    stats = ReadStats(3, 900, Timestamp(5, 1), Timestamp(6, 2), 7)
    first, second = inbox.address(1), inbox.address(2)
    assert first is not None
    assert second is not None
    later = replace(stats, events=4)
    for batch in ([stats, later], [stats]):
        report(stats, (*second[:2], "guessed"))
        report(stats, first)
        for each in batch:
            report(each, second)
        assert inbox.read() == (batch if len(batch) == 2 else [])
    inbox.close()
    assert inbox.read() == []
