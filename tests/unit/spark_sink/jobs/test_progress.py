"""What a running job tells: lines and metrics."""

import json
import re
import socket
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from bson.timestamp import Timestamp
from prometheus_client import generate_latest

from spark_sink.dataclass_json import to_document
from spark_sink.jobs.checkpoint import LoggedBatch
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.report.metrics import JobMetrics, ProgressListener
from spark_sink.jobs.report.progress import ProgressReport, QueryProgress, query_progress
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.snapshot.plan import Mark, Progress, SnapshotPlan
from spark_sink.snapshot.queue import BatchPart, SnapshotQueue, SnapshotRequest
from spark_sink.source.offsets import Offset
from tests.doubles.query_progress import THROUGH, offset_at, progress

ROOT = Path(__file__).parents[4]
TIME = Timestamp(5, 1)


def idle_progress(seconds: int, quiet: int | None) -> dict[str, Any]:
    """Return the report of a trigger without events, some seconds after THROUGH.

    `quiet` is the time up to which the stream has none, None if one may follow.
    """
    since = {} if quiet is None else {"quietUntil": {"t": THROUGH + quiet, "i": 1}}
    return {
        "timestamp": datetime.fromtimestamp(THROUGH + seconds, UTC).isoformat(),
        "batchId": 1,
        "durationMs": {"triggerExecution": 3},
        "sources": [{"endOffset": offset_at(0), "latestOffset": offset_at(seconds, **since)}],
    }


class Query:
    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.status = {"isTriggerActive": False}


def test_a_batch_is_told_once_with_rate_and_lag(capsys: pytest.CaptureFixture[str]) -> None:
    query = Query()
    metrics = JobMetrics()
    report = ProgressReport((metrics.add,), lambda: THROUGH + 4.0)
    report.wrote(0, TaskReport({"bronze": [*"abc"]}, events=500))  # type: ignore[list-item]
    idle = {**progress(1), "durationMs": {"triggerExecution": 3}, "sources": []}
    for each in (progress(0), idle, progress(1)):
        query.recentProgress.append(each)
        report(query)  # type: ignore[arg-type]
        report(query)  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["batch 0", "batch 1"]
    assert lines[0].startswith("batch 0: 500 events in 2.0 s (250/s), 3 files, through 2026-")
    assert lines[0].endswith("UTC, 4 s behind")
    text = generate_latest(metrics.registry).decode()
    assert "mergerouter_job_batches_total 2.0" in text
    assert "mergerouter_job_events_total 500.0" in text
    assert metrics.registry.get_sample_value("mergerouter_job_through_timestamp_seconds") == THROUGH
    assert report._written == {}


def test_an_idle_job_keeps_up_with_its_stream_and_tells_when_that_stands_still(
    capsys: pytest.CaptureFixture[str],
) -> None:
    query, metrics = Query(), JobMetrics()
    report = ProgressReport((metrics.add,))

    def through(*reports: dict[str, Any]) -> float | None:
        query.recentProgress += reports
        for _ in range(2):
            report(query)  # type: ignore[arg-type]
        value = metrics.registry.get_sample_value("mergerouter_job_through_timestamp_seconds")
        return None if value is None else value - THROUGH

    batch = LoggedBatch(29, json.loads(offset_at(-7)), None)
    report.begin(batch)
    assert through() == -7  # a job that hangs from its start on is behind
    assert through(progress(0)) == 0
    assert through(idle_progress(200, 195)) == 195
    assert through(idle_progress(230, None)) == 195  # a signal makes the stream wait
    assert through(idle_progress(256, 195)) == 195  # a shard no longer answers
    assert through(idle_progress(266, 195)) == 195
    assert through(idle_progress(280, 278)) == 278
    report.end(batch)
    lines = [
        line for line in capsys.readouterr().err.splitlines() if not line.startswith("batch 0")
    ]
    assert lines[0] == "Spark has started: the job continues after batch 29"
    assert lines[1].startswith("the stream stands still at 2026-")
    assert lines[2:] == ["the stream continues", "stopped after batch 29; the next start continues"]
    report.begin(None)
    report.end(None)
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "Spark has started: the job begins",
        "stopped before the first batch; the next start continues",
    ]


def test_the_end_of_a_snapshot_alone_promises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Its next start is refused."""
    report = ProgressReport((), once=True)
    end = Offset.of(json.loads(offset_at(0)))
    unfinished = replace(
        end,
        snapshots=SnapshotQueue(
            requests=(SnapshotRequest("i", "initial", plan=SnapshotPlan(TIME)),)
        ),
    )
    for offset in (unfinished, end):
        report.end(LoggedBatch(3, offset.document, None))
    assert capsys.readouterr().err.splitlines() == [
        "stopped after batch 3; the next start continues",
        "the snapshot is complete with batch 3",
    ]


def test_a_batch_that_runs_for_long_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    query, now = Query(), [1000.0]
    report = ProgressReport((), lambda: now[0])
    query.recentProgress.append(progress(0))
    for active in (False, True):
        query.status = {"isTriggerActive": active}
        for _ in range(3):
            report(query)  # type: ignore[arg-type]
            now[0] += 40
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "batch 0",
        "the batch in progress runs for more than 60 s",
    ]


def test_rows_are_counted_by_collection_and_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.jobs.report.metrics._MOST_NAMESPACES", 1)
    metrics = JobMetrics()
    first = [("shop.orders", "c", 3), ("shop.orders", "d", 1), ("shop.items", "c", 2)]
    for counts in (first, [("shop.orders", "c", 4), ("shop.more", "c", 5)]):
        metrics.add(QueryProgress(0, TaskReport(counts=counts), 1.0))
    lines = generate_latest(metrics.registry).decode().splitlines()
    assert [each for each in lines if each.startswith("mergerouter_job_changes_total")] == [
        'mergerouter_job_changes_total{namespace="shop.orders",operation="create"} 7.0',
        'mergerouter_job_changes_total{namespace="shop.orders",operation="delete"} 1.0',
        'mergerouter_job_changes_total{namespace="other",operation="create"} 7.0',
    ]


def test_a_listener_counts_the_batches_of_any_query() -> None:
    metrics = JobMetrics()
    report = {**progress(0), "numInputRows": 70}
    event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(report)))
    ProgressListener(metrics).onQueryProgress(event)  # type: ignore[arg-type]
    assert metrics.registry.get_sample_value("mergerouter_job_events_total") == 70
    assert metrics.registry.get_sample_value("mergerouter_job_through_timestamp_seconds") == THROUGH


def test_a_job_that_starts_again_finds_its_port_free() -> None:
    metrics = JobMetrics()
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        with metrics.serve(port), urlopen(f"http://127.0.0.1:{port}") as answer:
            assert b"mergerouter_job_batches_total 0.0" in answer.read()


def test_the_board_asks_for_metrics_that_exist() -> None:
    panels = json.loads((ROOT / "deploy" / "grafana" / "jobs.json").read_text())["panels"]
    metrics = JobMetrics()
    done = TaskReport(seconds={"current": 0.2})
    metrics.add(QueryProgress(0, done, 1.0))
    text = generate_latest(metrics.registry).decode()
    asked = {name for each in panels for name in re.findall(r"mergerouter_\w+", str(each))}
    assert asked
    assert {name for name in asked if name not in text} == set()
    assert all(each["description"] for each in panels)


def test_a_snapshot_s_progress_is_told_until_it_has_ended() -> None:
    done = Progress(3, 1, 12)
    signals = SnapshotQueue(
        requests=(SnapshotRequest("i", "initial", plan=SnapshotPlan(TIME, progress=done)),)
    )
    running = query_progress(progress(0, snapshots=to_document(signals)), THROUGH)
    at_end = to_document(SnapshotQueue(batch=BatchPart(ending=signals.requests[0])))
    ended = query_progress(progress(1, snapshots=at_end), THROUGH)
    assert str(running).endswith("snapshot: 1 of 3 collections, 12 chunks")
    assert "snapshot" not in str(ended)


def test_the_part_of_a_snapshot_that_is_done_is_a_metric() -> None:
    query, metrics = Query(), JobMetrics()
    report = ProgressReport((metrics.add,), lambda: THROUGH)
    plan = SnapshotPlan(TIME, end=Mark("items"), progress=Progress(2, 1, share=0.5))
    running = SnapshotQueue(requests=(SnapshotRequest("i", "initial", plan=plan),))
    for each, ratio in ((progress(0, snapshots=to_document(running)), 0.75), (progress(1), 1)):
        query.recentProgress.append(each)
        report(query)  # type: ignore[arg-type]
        assert metrics.registry.get_sample_value("mergerouter_job_snapshot_ratio") == ratio


@pytest.mark.parametrize("sources", [[], [{"endOffset": None}], [{"endOffset": "{"}]])
def test_a_report_without_an_offset_has_no_time(sources: list[dict[str, Any]]) -> None:
    found = query_progress({**progress(3), "sources": sources}, THROUGH)
    assert found.through is None
    assert "behind" not in str(found)


def test_the_innermost_cause_comes_first() -> None:
    java = "x.\n: a.B: m\n\tat c\nCaused by: java.io.IOException: No space left on device\n\tat d"
    assert cause_of(RuntimeError(java)).endswith(" (No space left on device)")
    assert cause_of(RuntimeError("plain words")) == "plain words"
    long = "Cannot create directory '/job/topic=x'. Detail: [errno 36] File name too long"
    assert cause_of(OSError(long)).startswith("the name of a collection or of a topic is too long")
    told = cause_of(OSError("Failed to open local file '/job/x'. Read-only file system"))
    assert told.startswith("a folder is on a file system that is mounted read-only: ")
    worker = "An exception was thrown from the Python worker:\nTraceback (most recent call last):"
    arrow = f'{worker}\n  File "x.py", line 1, in x\npyarrow.lib.ArrowInvalid: no footer in a.b'
    assert cause_of(RuntimeError(arrow)) == "no footer in a.b"


def test_any_error_of_this_package_is_the_cause_and_the_first_one_counts() -> None:
    later = "spark_sink.errors.StreamError: second\nCaused by: a.b.C: Java's text"
    for name in ("errors.SourceError", "errors.OptionError", "x.OtherError"):
        assert cause_of(RuntimeError(f"x\nspark_sink.{name}: first\n{later}")) == "first"


def test_a_python_worker_that_starts_too_late_is_explained() -> None:
    text = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Python worker "
    cause = cause_of(RuntimeError(f"{text}failed to connect back. SQLSTATE: XXKST"))
    assert "the machine is too busy" in cause
    assert "[STREAM_FAILED]" not in cause
    assert cause_of(RuntimeError("x\nCaused by: java.io.EOFException")) == "java.io.EOFException"
    ended = "x\nCaused by: a.B: Python worker exited unexpectedly (crashed)\n\tat c\nCaused by: a.C"
    assert "smaller batches" in cause_of(RuntimeError(ended))
