"""Read a backlog into Parquet files by a query, or into a table by a job; print rate and CPU."""

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.events import FIRST_SECOND
from bench.kernel import children, cpu_seconds, own_cpu_seconds
from spark_sink import local_session
from spark_sink.debezium import to_debezium
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_query import JobQuery
from spark_sink.jobs.job_tables import MESSAGES
from spark_sink.jobs.report.progress import query_progress
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.tables.delta_log import DeltaLog

# Batches of a query that include its start, and are not yet of full size.
_WARM_UP = 2
# Seconds between two looks at the CPU that the processes have used.
_LOOK = 0.1
_PLANNER = b"streaming_source"
_ENGINE = ("jvm", "tasks", "planner", "driver")
_PARTS = (*_ENGINE, "compilers", "source_cpu")
_DOCUMENT = "_id string, n long, tenant long, pad string"  # those of `bench.events`
_COMPILERS = ("(C1 Comp", "(C2 Comp")


def main() -> None:
    """Run the query several times in one JVM and print the figures of the last time as JSON.

    A new JVM spends most of its CPU on compiling its code; a user's query runs for weeks. The rate
    of the first time is printed too, as ``cold_rate``.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the router's port")
    parser.add_argument("--router", type=int, required=True, help="the router's process")
    parser.add_argument("--per-batch", type=int, required=True)
    parser.add_argument("--documents", required=True, help="or envelope: Debezium's messages")
    parser.add_argument("--tables", nargs="+", default=[], help="write these tables of a job")
    parser.add_argument("--ordering", default="perDocument")
    parser.add_argument("--start", default=f"{FIRST_SECOND},1", help="as SECONDS,INCREMENT")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = local_session("bench", cores=args.cores, settings=settings)
    measured = []
    for _ in range(args.times):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(measure(spark, args, Path(folder)))
    spark.stop()
    rows = min(row["rows"] for row in measured), max(row["rows"] for row in measured)
    if rows[0] != rows[1]:
        raise RuntimeError(f"between {rows[0]} and {rows[1]} rows of one backlog")
    print(json.dumps({**measured[-1], "cold_rate": measured[0]["rate"]}))


def measure(spark: SparkSession, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write the backlog; return the number of rows, and figures of the batches of full size.

    The figures are ``rate`` in events a second, ``planning_ms``, the median of a batch, and the CPU
    of ``jvm``, ``tasks``, ``planner``, ``driver``, all of them (``engine_cpu``) and the router
    (``source_cpu``) in µs per event; ``compilers`` is the part of the JVM's that compiles its code.
    """
    count = CpuCount(args.router)
    begun = before = after = count.look()
    skipped, written = 0, dict[int, TaskReport]() if args.tables else None
    if written is not None:
        job_query = make_job(folder, args.tables, options_of(args))
        query = replace(job_query, wrote=written.__setitem__).start(spark, None)
    else:
        query = parquet_query(spark, args, folder)
    while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]
        after = count.look()
        if not skipped and len(full_batches(query, written)) >= _WARM_UP:
            before, skipped = after, len(full_batches(query, written))
    after = count.look()
    progress = full_batches(query, written)
    if args.tables:
        rows = DeltaLog(str(folder / args.tables[0])).count()
    else:
        rows = spark.read.parquet(str(folder / "table")).count()
    warm = progress[_WARM_UP:] or progress
    events = sum(size for _, size in warm)
    seconds = sum(report["durationMs"]["triggerExecution"] for report, _ in warm) / 1e3
    planning = [
        report["durationMs"].get("latestOffset", 0) + report["durationMs"].get("queryPlanning", 0)
        for report, _ in warm
    ]
    figures = {"rows": rows, "rate": events / seconds, "planning_ms": median(planning)}
    counted = sum(size for _, size in progress[skipped:])
    if not counted:  # a few large batches
        before, counted = begun, sum(size for _, size in progress)
    figures |= {name: (after[name] - before[name]) / counted * 1e6 for name in after}
    return {**figures, "engine_cpu": sum(figures[part] for part in _ENGINE)}


def parquet_query(spark: SparkSession, args: argparse.Namespace, folder: Path) -> StreamingQuery:
    """Start a query into Parquet files."""
    frame = spark.readStream.format("mergerouter").options(**options_of(args)).load()
    frame = to_debezium(frame, "bench") if args.documents == "envelope" else frame
    writer = frame.writeStream.format("parquet").option("path", str(folder / "table"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def make_job(folder: Path, tables: Sequence[str], options: Mapping[str, str]) -> JobQuery:
    """Return a job with these options of the source, which writes tables into a folder."""
    where, settings = JobFolder(str(folder)), dict(options)
    uri = settings.pop("uri")
    messages = {"prefix": "bench"} if MESSAGES in tables else {}
    record = JobRecord((), settings, tuple(tables), messages=messages)
    where.begin(record)
    return JobQuery(where, record, uri)


def options_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the source."""
    return {
        "uri": f"mongodb://127.0.0.1:{args.port}",
        "startAtOperationTime": args.start,
        "maxEventsPerTrigger": str(args.per_batch),
        "ordering": args.ordering,
        "documents": "raw" if args.documents == "envelope" else args.documents,
        **({"documentSchema": _DOCUMENT} if args.documents == "typed" else {}),
    }


def full_batches(query: Any, written: Mapping[int, TaskReport] | None) -> list[tuple[Any, int]]:
    """Return the progress of the query's batches that had events, and their number.

    Spark counts them, except those that a job has `written`.
    """
    read = [(report, query_progress(report, 0.0)) for report in query.recentProgress]
    counted = [
        (report, (each.written if written is None else written[each.batch]).events)
        for report, each in read
        if each.batch is not None
    ]
    return [(report, events) for report, events in counted if events]


class CpuCount:
    """Counts the CPU seconds of the parts of a query.

    A process or a thread that has ended keeps what it had used at the last look, so that no figure
    ever falls.
    """

    def __init__(self, router: int) -> None:
        self._router = router
        self._seconds: dict[tuple[str, int], float] = {}

    def look(self) -> dict[str, float]:
        """Return the CPU seconds that the parts have used so far."""
        self._note("source_cpu", self._router, cpu_seconds(self._router))
        for jvm in children(os.getpid()):
            with contextlib.suppress(OSError):  # it has just ended
                self._note("jvm", jvm, own_cpu_seconds(jvm))
                self._note_compilers(jvm)
            for worker in children(jvm):
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{worker}/cmdline").read_bytes()
                    part = "planner" if _PLANNER in line else "tasks"
                    self._note(part, worker, cpu_seconds(worker))
        # This thread looks; the others are those of a job that commits.
        self._note("driver", 0, time.process_time() - time.thread_time())
        totals = dict.fromkeys(_PARTS, 0.0)
        for (part, _), seconds in self._seconds.items():
            totals[part] += seconds
        return totals

    def _note(self, part: str, number: int, seconds: float) -> None:
        self._seconds[part, number] = max(seconds, self._seconds.get((part, number), 0.0))

    def _note_compilers(self, jvm: int) -> None:
        for thread in Path(f"/proc/{jvm}/task").iterdir():
            with contextlib.suppress(OSError):
                name, _, fields = (thread / "stat").read_text().rpartition(")")
                if any(compiler in name for compiler in _COMPILERS):
                    ticks = sum(map(int, fields.split()[11:13]))
                    self._note("compilers", int(thread.name), ticks / os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    main()
