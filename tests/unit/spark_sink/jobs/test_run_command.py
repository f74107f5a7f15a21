"""`mergerouter job run`, without Spark: what it starts, prints and ends with."""

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from typer.testing import CliRunner, Result

import spark_sink.cli as command
from spark_sink import running
from spark_sink.errors import SourceError
from spark_sink.jobs import orderly_stop, router_beside
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_query import JobQuery
from spark_sink.jobs.report.router_report import RouterReport
from spark_sink.jobs.stop_request import StopRequest
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.tables.delta_log import DeltaLog
from tests.doubles.query_progress import progress
from tests.doubles.scripted_job import Script, follow

URI = "mongodb://127.0.0.1:27999"
TWO_TABLES = JobRecord(options={"snapshotMode": "no_data"})


class EndedQuery:
    """A query that has run one batch and ends."""

    def __init__(self) -> None:
        self.recentProgress = [progress(0, events=7)]

    status: ClassVar = {"isDataAvailable": False}

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802
        return True


class WaitingQuery(EndedQuery):
    """A query whose `tick` says whether it has ended."""

    def __init__(self, tick: Callable[[], bool], events: list[str]) -> None:
        super().__init__()
        self.status, self.lastProgress = {"isTriggerActive": False}, None
        self.awaitTermination = lambda _seconds: tick()
        self.stop = lambda: events.append("query stops")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; no router answers before one is started."""
    happened: list[str] = []

    class Router:
        def __init__(self, command: list[str], _log: Path) -> None:
            happened.append(" ".join(command[3:]))

        def __enter__(self) -> "Router":
            happened.append("router starts")
            return self

        def __exit__(self, *_: object) -> None:
            happened.append("router ends")

    def require(_options: dict[str, str]) -> str:
        if "router starts" not in happened:
            raise SourceError("cannot be reached: start it")
        return ""

    @contextmanager
    def session(*_: object) -> Iterator[Any]:
        yield None

    def start(job: JobQuery, _spark: object, _trigger: str) -> EndedQuery:
        happened.append("query starts")
        job.wrote(0, TaskReport(events=7))
        return EndedQuery()

    def send(report: RouterReport, *, ended: bool = False) -> None:
        error, batch = report._report.get("error"), report._report.get("batch")
        happened.append(f"reports {error or batch}{' ended' * ended}")

    monkeypatch.setattr(RouterReport, "_send", send)
    monkeypatch.setattr(router_beside, "_running", Router)
    for module in (router_beside, running):
        monkeypatch.setattr(module, "require_cluster", require)
    monkeypatch.setattr(running, "warn_of_unmatched_names", lambda *_: None)
    monkeypatch.setattr(running, "job_session", session)
    monkeypatch.setattr(JobQuery, "start", start)
    return happened


def run(folder: Path, *arguments: str, what: str = "run") -> Result:
    given = [what, "shop.orders", "--out", str(folder / "job"), "--uri", URI, *arguments]
    return CliRunner().invoke(command.job, given)


def run_all(folder: Path, *names: str) -> Result:
    """Run the jobs of a file with these collections."""
    (folder / "jobs.yaml").write_text("collections:\n" + "".join(f"  {name}:\n" for name in names))
    given = ["--config", str(folder / "jobs.yaml"), "--configdb", "cfg/h:1", "--uri", URI]
    return CliRunner().invoke(command.job, ["run", "--out", str(folder / "job"), *given])


def test_a_batch_is_a_line(events: list[str], tmp_path: Path) -> None:
    result = run(tmp_path, "--configdb", "cfg/h:1", "--upstream", "mongodb://m:1")
    assert result.exit_code == 0, result.output
    assert "batch 0: 7 events in 2.0 s" in result.output
    assert events == [
        "serve --port 27999 --configdb cfg/h:1 --upstream mongodb://m:1", "router starts",
        "query starts",
        "reports 0", "reports 0 ended", "router ends",
    ]  # fmt: skip


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("lost", ["commits/0", ""])
def test_job_check_and_job_run_decide_alike_before_the_run_ends_another_start(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables say where the job is. Its checkpoint lacks a file, or is on another machine."""
    checkpoint = tmp_path / "job" / "checkpoint"
    follow(str(tmp_path / "job"), checkpoint, Script(5), record=TWO_TABLES, batches=1)
    shutil.rmtree(checkpoint) if not lost else (checkpoint / lost).unlink()
    take_over = Mock(side_effect=running.take_over)
    monkeypatch.setattr(running, "take_over", take_over)
    monkeypatch.setattr(running, "require_cluster", lambda _: "")
    for flags, told in (("--deletes=soft",), "has --deletes hard, not soft"), ((), ""):
        checked = run(tmp_path, *flags, what="check")
        result = run(tmp_path, *flags, "--configdb", "cfg/h:1")
        if told:
            assert told in checked.output
            assert told in result.output
            assert not take_over.called
        else:  # another beginning than the record has: no batch is repeated from there
            assert "continues after batch 0" in checked.output
            assert (result.exit_code, take_over.called) == (0, True), result.output


def test_a_job_beside_one_that_cannot_start_does_not_end_the_one_that_runs(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "take_over", lambda _: events.append("takes over"))
    with JobFolder(str(tmp_path / "job" / "shop.bad")).locked():
        result = run_all(tmp_path, "shop.good", "shop.bad")
    assert "shop.bad is running" in result.output
    assert "takes over" not in events


PIPELINE = '--option=pipeline=[{"$match": {"operationType": "insert"}}]'


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--trigger", "1 moment"], "trigger: '1 moment' is not a time: write 500 milliseconds"),
        (["--metrics-port", "{port}"], "--metrics-port {port} cannot be opened: choose another"),
        (
            ["--verify-every=1h", "--option=snapshotMode=no_data", PIPELINE],
            "snapshotFilters, which",
        ),
    ],
)
def test_a_start_with_wrong_settings_does_not_end_the_one_that_runs(
    flags: list[str],
    told: str,
    events: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "take_over", lambda _: events.append("takes over"))
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        result = run(
            tmp_path, "--configdb", "cfg/h:1", *(flag.replace("{port}", port) for flag in flags)
        )
    assert told.replace("{port}", port) in result.output
    assert result.exit_code == 2
    assert "takes over" not in events


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("[Errno 2] No such file or directory: 'lake/current/keyRange=a/x.parquet'", "is lost"),
        ("When reading information for key 'lake/current/keyRange=a/x': SLOW_DOWN", "When reading"),
    ],
)
def test_a_file_that_a_storage_does_not_return_is_not_lost(cause: str, told: str) -> None:
    assert told in cause_of(OSError(cause))


def test_a_start_reads_the_states_of_the_tables_before_and_after_it_takes_over(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store, each state takes some requests."""
    out, read = str(tmp_path / "job"), Counter[str]()
    follow(out, tmp_path / "job" / "checkpoint", Script(5), record=TWO_TABLES, batches=2)
    require = DeltaLog.require_not_restored

    def counting(log: DeltaLog, *names: str) -> None:
        read[log.name] += 1
        require(log, *names)

    monkeypatch.setattr(DeltaLog, "require_not_restored", counting)
    assert run(tmp_path, "--configdb", "cfg/h:1", "--option=snapshotMode=no_data").exit_code == 0
    assert read == dict.fromkeys(("bronze", "current", "notifications", "quarantine"), 2)
    assert "query starts" in events


def test_the_log_of_the_own_router_is_in_the_jobs_folder(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "router.log").write_text("of the run before")
    flags = ["--configdb", "localhost:1", "--uri", "mongodb://127.0.0.1:27998"]
    result = run(tmp_path, *flags)
    log = tmp_path / "job" / "router.log"
    assert f"its log is {log}\n" in result.output
    assert "must be setName" in result.output
    assert "must be setName" in log.read_text()
    assert log.with_suffix(".log.1").read_text() == "of the run before"


def test_without_a_router_the_cause_is_told(events: list[str], tmp_path: Path) -> None:
    result = run(tmp_path)
    assert (result.exit_code, events) == (1, [])
    assert result.output == "error: cannot be reached: start it\n"
    assert not (tmp_path / "job").exists()


def test_a_record_is_not_mended_while_another_process_has_the_job(
    events: list[str], tmp_path: Path
) -> None:
    damaged = tmp_path / "job" / "job.json"
    with JobFolder(str(tmp_path / "job")).locked():
        damaged.write_text("{")
        result = run(tmp_path, "--configdb", "cfg/h:1")
        assert (result.exit_code, damaged.read_text()) == (2, "{")
    assert "is running" in result.output
    assert run(tmp_path, "--configdb", "cfg/h:1").exit_code == 0
    assert "query starts" in events
    assert JobFolder(str(tmp_path / "job")).record().namespaces == ("shop.orders",)


def test_a_signal_that_ends_spark_too_is_an_orderly_end(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_self: JobQuery, _spark: object, _trigger: str) -> EndedQuery:
        signal.raise_signal(signal.SIGTERM)
        raise ConnectionRefusedError("the JVM is gone")

    @contextmanager
    def session(*_: object) -> Iterator[Any]:
        yield None
        raise ConnectionRefusedError("the JVM is gone")  # so that its session cannot end

    monkeypatch.setattr(JobQuery, "start", ended)
    monkeypatch.setattr(running, "job_session", session)
    result = run(tmp_path, "--configdb", "cfg/h:1")
    assert result.exit_code == 0, result.output
    assert "the next start repeats the batch" in result.output
    assert events[-2:] == ["reports None ended", "router ends"]


@pytest.mark.parametrize("error", [StreamingQueryException, OSError, PySparkException])
def test_a_batch_that_fails_after_a_signal_is_a_failure(
    error: type[Exception], events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick() -> bool:
        signal.raise_signal(signal.SIGTERM)
        raise error("disk is gone")

    monkeypatch.setattr(JobQuery, "start", lambda *_: WaitingQuery(tick, events))
    result = run(tmp_path, "--configdb", "cfg/h:1")
    assert (result.exit_code, result.output.count("error: disk is gone\n")) == (1, 1)
    assert events[-2:] == ["reports disk is gone", "router ends"]


def test_a_batch_that_spark_cancels_when_a_signal_ends_it_is_no_failure(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick() -> bool:
        signal.raise_signal(signal.SIGTERM)
        raise StreamingQueryException("Job 3 cancelled because SparkContext was shut down")

    monkeypatch.setattr(JobQuery, "start", lambda *_: WaitingQuery(tick, events))
    result = run(tmp_path, "--configdb", "cfg/h:1")
    assert result.exit_code == 0, result.output
    assert "the next start repeats the batch" in result.output


def test_a_signal_while_spark_starts_ends_the_job_at_once(
    events: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def starting(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal has not ended the job")

    monkeypatch.setattr(running, "job_session", starting)
    result = run(tmp_path, "--configdb", "cfg/h:1")
    assert result.exit_code == 0, result.output
    assert "stopped before the first batch\n" in capfd.readouterr().err
    assert events[-2:] == ["router starts", "router ends"]


def test_a_signal_before_the_packages_are_imported_is_an_orderly_end(tmp_path: Path) -> None:
    """The imports take seconds. Without a handler, the signal ends the process in silence."""
    signals_itself = f"""
import signal, sys
from importlib.abc import MetaPathFinder
from spark_sink.cli import job

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pyspark":
            signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, Finder())
job(["run", "shop.orders", "--uri", "{URI}", "--out", "{tmp_path}/job"])
"""
    done = subprocess.run(
        [sys.executable, "-c", signals_itself], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "stopped before the first batch\n")


@pytest.mark.parametrize("others", [(), ("shop.good",)])
def test_a_failure_ends_all_jobs_and_is_printed_and_reported_once(
    others: tuple[str, ...], events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise StreamingQueryException("x\nCaused by: java.io.IOException: disk is gone")

    ticks = {"shop.bad": fail, "shop.good": bool}
    start = lambda job, *_: WaitingQuery(ticks[job.record.namespaces[0]], events)  # noqa: E731
    monkeypatch.setattr(JobQuery, "start", start)
    result = run_all(tmp_path, "shop.bad", *others)
    assert (result.exit_code, result.output.count("error: disk is gone\n")) == (1, 1)
    assert ("shop.bad: the job has failed, and the others end" in result.output) is bool(others)
    assert ("shop.good: Spark has started: the job begins" in result.output) is bool(others)
    assert events.count("reports disk is gone") == 1
    assert events[-2:] == [f"reports {'0 ended' if others else 'disk is gone'}", "router ends"]


def test_a_failure_while_the_jobs_end_for_another_one_is_no_orderly_stop(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, request = threading.Event(), StopRequest.request

    def fail(cause: str) -> bool:
        raise StreamingQueryException(f"x\nCaused by: java.io.IOException: {cause}")

    def requested(end: StopRequest, *, after_failure: bool = False) -> None:
        request(end, after_failure=after_failure)
        asked.set()

    ticks = {
        "shop.bad": lambda: fail("disk is gone"),
        "shop.worse": lambda: asked.wait(60) and fail("router is gone"),
    }

    def start(job: JobQuery, *_: object) -> WaitingQuery:
        query = WaitingQuery(ticks[job.record.namespaces[0]], events)
        query.status = {"isTriggerActive": True}
        return query

    monkeypatch.setattr(JobQuery, "start", start)
    monkeypatch.setattr(StopRequest, "request", requested)
    result = run_all(tmp_path, "shop.bad", "shop.worse")
    assert "shop.worse: the job has failed, and the others end: router is gone\n" in result.output
    assert "stopped with Spark's JVM" not in result.output
    assert {"reports disk is gone", "reports router is gone"} <= {*events}


def test_a_clock_that_is_set_back_ends_the_job(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts batches by the clock, so it waits until the clock shows the same time again."""

    def tick() -> bool:
        monkeypatch.setattr(orderly_stop.time, "time", lambda: before() - 3600)
        return False

    before = time.time
    monkeypatch.setattr(JobQuery, "start", lambda *_: WaitingQuery(tick, events))
    result = run(tmp_path, "--configdb", "cfg/h:1")
    assert result.exit_code == 1
    assert "error: the clock of this machine was set back by 3600 s" in result.output
    assert "query stops" in events


def test_a_batch_that_takes_too_long_to_stop_is_told(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick() -> bool:
        if "asked" not in events:
            signal.raise_signal(signal.SIGTERM)
        events.append("asked")
        return False

    query = WaitingQuery(tick, events)
    query.status = {"isTriggerActive": True}
    monkeypatch.setattr(orderly_stop, "STOP_TIMEOUT", 3)
    monkeypatch.setattr(JobQuery, "start", lambda *_: query)
    result = run(tmp_path, "--configdb", "cfg/h:1")
    assert result.exit_code == 0, result.output
    assert "the batch in progress has not ended in 3 s: the next start repeats it" in result.output
    assert events.count("asked") == 4


def test_no_batch_begins_between_the_last_one_and_the_end_of_the_query(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick() -> bool:
        signal.raise_signal(signal.SIGTERM)
        return False

    monkeypatch.setattr(JobQuery, "start", lambda *_: WaitingQuery(tick, events))
    monkeypatch.setattr(RouterReport, "turn", lambda _: events.append("reports"))
    assert run(tmp_path, "--configdb", "cfg/h:1").exit_code == 0
    last = max(n for n, event in enumerate(events) if event == "reports")
    assert events.index("query stops") < last


def test_an_exit_in_the_thread_of_one_job_ends_the_others(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> bool:
        raise SystemExit(3)

    ticks = {"shop.bad": leave, "shop.good": bool}
    start = lambda job, *_: WaitingQuery(ticks[job.record.namespaces[0]], events)  # noqa: E731
    monkeypatch.setattr(JobQuery, "start", start)
    result = run_all(tmp_path, "shop.bad", "shop.good")
    assert result.exit_code == 3
