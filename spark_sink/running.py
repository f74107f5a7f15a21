"""Runs jobs from their settings, in the process of a command or of a notebook."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from bson.timestamp import Timestamp
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.console import lines_of_job, say
from spark_sink.errors import SourceError
from spark_sink.folders import is_local
from spark_sink.jobs.compaction import compaction_beside
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.history.left_out_events import replace_lost_batch
from spark_sink.jobs.history.newest_batch import restore_checkpoint, restored_batch
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_query import JobQuery
from spark_sink.jobs.job_settings import JobSettings, load_job_settings
from spark_sink.jobs.orderly_stop import is_stop_by_signal, run_until_stopped
from spark_sink.jobs.report.metrics import JobMetrics
from spark_sink.jobs.report.progress import ProgressReport
from spark_sink.jobs.report.router_report import RouterReport
from spark_sink.jobs.report.status import status_of
from spark_sink.jobs.report.waiting import position_to_reach, wait_until
from spark_sink.jobs.router_beside import router_beside
from spark_sink.jobs.stop_request import StopRequest
from spark_sink.jobs.table_commits import take_over
from spark_sink.source.option_checks import warn_of_unmatched_names
from spark_sink.spark_session import job_session
from spark_sink.stream.router_client import require_cluster
from spark_sink.verification.rounds import Verifier, require_document_filters
from spark_sink.verification.verify_job import Outcome, verify_job

_POLL_SECONDS = 0.2
# How Spark writes a query's log to a local folder. Its default starts a program for each file, to
# set permissions: 85 ms a batch, and 20 ms with this. Both write a file aside and rename it.
_LOG_BY_RENAME = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager"
}
_WITH_JVM = "stopped with Spark's JVM; the next start repeats the batch that was in progress"


def run_jobs(
    settings: JobSettings,
    stop: StopRequest,
    spark: SparkSession | None = None,
    *,
    once: bool = False,
) -> None:
    """Run the jobs of some settings until `stop` is requested or one fails.

    A failure of one ends all, after their batches in progress, and is raised. With `once` each
    reads a snapshot alone, and ends. Raises SourceError, and what Spark raises.
    """
    failures: list[Exception | None] = []
    with router_beside(settings), ExitStack() as held:
        jobs = settings.jobs()
        starts = [_Start(settings, stop, *job, len(jobs) > 1, once) for job in jobs]
        for number, start in enumerate(starts):
            start.check(held, number)
        for start in starts:
            start.take_over()
        conf = settings.conf
        others = spark is not None or SparkContext._active_spark_context is not None
        if not others and all(is_local(folder.checkpoint.address) for folder, _ in jobs):
            conf = {**_LOG_BY_RENAME, **conf}
        try:
            with job_session("run", conf, spark) as session:
                stop.begin()
                if len(starts) == 1:  # in the thread that gets the signals
                    failures.append(starts[0].run(session))
                else:
                    failures += _run_together(starts, session, stop)
        except Exception as error:
            # The session cannot end after some failures, and where a signal has ended its JVM.
            if not (any(failures) or is_stop_by_signal(error, stop)):
                raise
    if (first := next(filter(None, failures), None)) is not None:
        raise first


def _run_together(
    starts: Sequence[_Start], spark: SparkSession, stop: StopRequest
) -> list[Exception | None]:
    """Run jobs in threads until all have ended; the first failure requests the end of all."""
    failures: list[Exception | None] = []
    with ThreadPoolExecutor(len(starts)) as pool:
        running = {pool.submit(start.run, spark): start for start in starts}
        try:
            for future in as_completed(running):
                failures.append(error := future.result())
                if error is not None:
                    stop.request(after_failure=True)
                    with lines_of_job(running[future].name):
                        say(f"the job has failed, and the others end: {cause_of(error)}")
        except BaseException:
            stop.request(after_failure=True)  # the pool waits for the other jobs
            raise
    return failures


def _checked(settings: JobSettings, record: JobRecord) -> JobRecord:
    """Return a record whose options are checked, with the cluster's id. Raises SourceError."""
    given = record.source_options(settings.uri)
    if settings.verify_every is not None:
        require_document_filters(given)
    record = replace(record, cluster=require_cluster(given))
    warn_of_unmatched_names(given)
    return record


class _Start:
    """A start of one of the jobs of some settings.

    `check` refuses what cannot start, while an earlier start may run. `take_over` ends that one.

    Args:
        folder, record: the job, and what it is started with.
        has_others: whether it has jobs beside it; then its lines begin with its collection.
        once: whether it reads a snapshot alone.
    """

    def __init__(
        self,
        settings: JobSettings,
        stop: StopRequest,
        folder: JobFolder,
        record: JobRecord,
        has_others: bool,
        once: bool,
    ) -> None:
        self.name = record.namespaces[0] if has_others else ""
        self._settings, self._stop = settings, stop
        self._folder, self._record, self._once = folder, record, once
        self._metrics = JobMetrics()

    def check(self, held: ExitStack, number: int) -> None:
        """Check the job, before Spark starts; its folder is locked until `held` is closed.

        `number` says which port of the settings its metrics have. Raises SourceError.
        """
        settings, folder = self._settings, self._folder
        with lines_of_job(self.name):
            if self._once:
                self._record.options["snapshotMode"] = "initial_only"
            self._record = record = _checked(settings, self._record)
            held.enter_context(folder.locked())
            folder.mend(record)
            folder.require_continues(record, restored_batch(folder), once=self._once)
            if settings.metrics_port is not None:
                held.enter_context(self._metrics.serve(settings.metrics_port + number))
            options = record.source_options(settings.uri)
            self._router = held.enter_context(RouterReport(folder.address, options))

    def take_over(self) -> None:
        """End an earlier start, and restore what a crash has left. Raises SourceError."""
        with lines_of_job(self.name):
            self._epoch = take_over(self._folder)
            newest = restore_checkpoint(self._folder)
            self._folder.begin(self._record, once=self._once)
            replace_lost_batch(self._folder, self._settings.uri, newest, self._epoch)

    def run(self, spark: SparkSession) -> Exception | None:
        """Run the job's query until it ends; report its failure to the router, and return it."""
        with lines_of_job(self.name):
            try:
                self._run_query(spark)
            except Exception as error:  # noqa: BLE001 - it is raised once all jobs have ended
                if not is_stop_by_signal(error, self._stop):
                    self._router.failed(cause_of(error))
                    return error
                say(_WITH_JVM)
        return None

    def _run_query(self, spark: SparkSession) -> None:
        settings, folder, record = self._settings, self._folder, self._record
        verifier = findings = None
        if settings.verify_every is not None:
            options = record.source_options(settings.uri)
            verifier = Verifier(spark, folder, options, settings, self._metrics.add_round)
            findings = verifier.findings
        report = ProgressReport((self._metrics.add, self._router.add), once=self._once)
        job = JobQuery(
            folder,
            record,
            settings.uri,
            findings=findings,
            epoch=self._epoch,
            keep_files=settings.keep_files,
            wrote=report.wrote,
        )

        def report_all(running: StreamingQuery) -> None:
            report(running)
            self._router.turn()

        query = job.start(spark, None if self._once else settings.trigger)
        try:
            report.begin(folder.checkpoint.last_committed())
            with verifier or nullcontext(), compaction_beside(folder, settings.maintain):
                run_until_stopped(query, self._stop, report_all)
        except BaseException:
            with suppress(Exception):  # the session may be gone
                query.stop()  # in a session of the caller it would go on without the lock
            raise
        report.end(folder.checkpoint.last_committed())


def check_jobs(settings: JobSettings) -> Iterator[str]:
    """Return what `run_jobs` would do, as lines, without doing it. Raises SourceError."""
    for folder, wanted in settings.jobs():
        record = _checked(settings, wanted)
        folder.require_continues(record, last := restored_batch(folder))
        what = ", ".join(record.namespaces) or "the whole cluster"
        begins = f"starts, with option snapshotMode={record.options['snapshotMode']}"
        if last is not None and (done := last.number - (last.committed is None)) >= 0:
            begins = f"continues after batch {done}"
        yield f"{folder.address}: follows {what}; {begins}"
        columns = " ".join(record.schema.split())[:60]
        form = f"schema {columns}, deletes {record.deletes}{', flattened' * record.flatten}"
        yield f"  tables {', '.join(record.tables)}; of current: {form}"
        for name, text in record.options.items():
            yield f"  option {name}={text}"
    yield f"a batch every {settings.trigger}"
    if settings.maintain is not None:
        yield f"compaction every {settings.maintain:g} s"
    if settings.verify_every is not None:
        every, repair = f"{settings.verify_every:g} s", ", with repair" * settings.repair
        yield f"verification every {every} at {settings.verify_rate}/s{repair}"


class Job:
    """The job, or the jobs, of some settings: of this process, or of another one in this folder.

        from spark_sink import Job

        with Job("orders", namespaces=["shop.orders"], schema="infer").start() as job:
            job.wait("now")

    Args:
        out: the job's folder, if the file does not name it.
        config: a file as for `mergerouter job run --config`.
        settings: as the flags of `job run`, such as `schema`, `mask` or `verify_every`.

    Raises OptionError.
    """

    def __init__(self, out: str | None = None, config: str | None = None, **settings: Any) -> None:
        given = settings if out is None else {"out": out, **settings}
        self.settings: JobSettings = load_job_settings(given, config)
        """The validated settings."""
        self._stop = StopRequest(handles_signals=False)
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _folders(self) -> Sequence[JobFolder]:
        return [folder for folder, _ in self.settings.jobs()]

    def start(self, spark: SparkSession | None = None) -> Self:
        """Run the job in a thread of this process, in a session of Spark, or in the active one.

        A failure is raised by the next `start`, `wait` or `stop`. A job that runs goes on.
        """
        if self._running is not None and not self._running.done():
            return self
        self.stop()
        stop = self._stop = StopRequest(handles_signals=False)
        session = spark or SparkSession.getActiveSession()
        running = self._running = Future[None]()

        def run() -> None:
            try:
                run_jobs(self.settings, stop, session)
                running.set_result(None)
            except BaseException as error:  # noqa: BLE001 - the future raises it
                running.set_exception(error)
                say(f"error: {cause_of(error)}")

        threading.Thread(target=run, name="mergerouter-job", daemon=True).start()
        return self

    def stop(self) -> None:
        """Commit the batch in progress, and end the job of this process.

        Raises what has ended it before.
        """
        self._stop.request()
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def wait(self, to: str | datetime | Timestamp = "now", timeout: float = 600) -> None:
        """Wait until all tables have all events up to a time, as `mergerouter job wait`.

        Args:
            to: "now", a cluster time such as a session's `operation_time`, or a resume token.
            timeout: in seconds.

        Raises TimeoutError, which says what is missing, SourceError, and what has ended the job.
        """
        deadline = time.monotonic() + timeout
        while self._running and not self._stop.begun.wait(_POLL_SECONDS):
            self._require_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout:g} s the job has not begun")
        target = position_to_reach(to, self.settings.uri)
        for folder in self._folders:
            wait_until(folder, target, deadline - time.monotonic(), self._require_running)

    def status(self) -> list[dict[str, Any]]:
        """Return the state of each job, as `mergerouter job status --json`. Raises SourceError."""
        return [status_of(folder, self.settings.uri) for folder in self._folders]

    def verify(
        self, spark: SparkSession | None = None, tables: Sequence[str] | None = None
    ) -> Mapping[str, Outcome]:
        """Compare the tables, as `mergerouter job verify`; return the outcomes by their folders.

        An outcome has the `count` of differences and the `first` of them, and `failed` says whether
        the comparison was impossible. Raises SourceError.
        """
        given = spark or SparkSession.getActiveSession()
        by_table: dict[str, Outcome] = {}
        with job_session("verify", self.settings.conf, given) as used:
            for folder in self._folders:
                outcomes = verify_job(used, folder, self.settings.uri, tables)
                by_table |= {folder.table(name): outcome for name, outcome in outcomes.items()}
        return by_table

    def _require_running(self) -> None:
        """Raise what has ended the job, if it ran here and has ended."""
        if self._running is not None and self._running.done():
            self.stop()
            raise SourceError("the job has ended: start it again")
