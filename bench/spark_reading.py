"""Plan and read a backlog as the Spark source does, without Spark; print the cost of each part."""

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from bson.timestamp import Timestamp
from pyspark.sql.types import StructType

from bench.events import FIRST_SECOND
from spark_sink.batches.batch_planner import BatchPlanner
from spark_sink.batches.event_rate import ReportInbox, report
from spark_sink.batches.planned_batch import ClusterAccess
from spark_sink.batches.read_task import TaskReader
from spark_sink.events.positions import AtTime, Position
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.rows.event_rows import EventRows
from spark_sink.rows.typed_documents import from_json
from spark_sink.source.tasks import rows_for
from spark_sink.stream.router_client import RouterClient

DOCUMENT = (
    StructType().add("_id", "string").add("n", "long").add("tenant", "long").add("pad", "string")
)
"""The documents of the events (`bench.events`)."""


def main() -> None:
    """Read the backlog that the command line describes and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the router's port")
    parser.add_argument("--events", type=int, required=True, help="number of events to read")
    parser.add_argument("--per-batch", type=int, required=True)
    parser.add_argument("--documents", default="json")
    parser.add_argument("--ordering", default="perDocument")
    args = parser.parse_args()
    given = {
        "uri": f"mongodb://127.0.0.1:{args.port}",
        "ordering": args.ordering,
        **document_options(args.documents),
    }
    options = parse_options(given)
    if options.document_schema is not None:
        options = replace(options, document_type=from_json(options.document_schema))
    client = RouterClient(options)
    client.require_reachable()
    inbox = ReportInbox(client.address)
    print(json.dumps(measure(client, inbox, args, rows_for(options))))
    inbox.close()
    client.close()


def document_options(documents: str) -> dict[str, str]:
    """Return the options of the source for one form of documents."""
    given = {"documents": documents}
    if documents == "typed":
        given["documentSchema"] = DOCUMENT.json()
    return given


def measure(
    client: RouterClient, inbox: ReportInbox, args: argparse.Namespace, rows: EventRows
) -> dict[str, Any]:
    """Plan and read the backlog, one task after the other.

    Returns events a second (``rate``), the median of the planning time in ms, the CPU of planner
    and tasks in µs per event, the smallest and the largest batch, and the number of events.
    """
    cluster = ClusterAccess(
        watch=partial(client.watch_tokens, max_await=0.1),
        newest=lambda: client.clocks().cluster_time,
        present=client.present,
        beginning=lambda: AtTime(Timestamp(FIRST_SECOND, 1)),
        shards=client.shards,
    )
    limits = StreamOptions("mongodb://127.0.0.1", in_total_order=args.ordering == "total")
    planner = BatchPlanner(cluster, limits, inbox)
    watch = partial(client.watch_events, batch_size=0, max_await=0.5)
    start: Position = AtTime(Timestamp(FIRST_SECOND, 1))
    planning: list[float] = []
    sizes: list[int] = []
    planner_cpu = task_cpu = 0.0
    begun = time.perf_counter()
    while sum(sizes) < args.events:
        cpu, wall = time.process_time(), time.perf_counter()
        batch = planner.next_batch(start, args.per_batch)
        tasks = planner.tasks(batch)
        planning.append(time.perf_counter() - wall)
        planner_cpu += time.process_time() - cpu
        cpu, size = time.process_time(), 0
        for task in tasks:
            reader = TaskReader(task, watch)
            size += sum(each.num_rows for each in rows.batches_of_runs(reader.runs()))
            if task.report_to is not None:
                report(reader.stats, task.batch, task.report_to)
        task_cpu += time.process_time() - cpu
        sizes.append(size)
        start = batch.end
    seconds = time.perf_counter() - begun
    planner.close()
    full = sizes[2:-1] or sizes
    return {
        "rate": sum(sizes) / seconds,
        "planning_ms": median(planning) * 1e3,
        "planner_cpu": planner_cpu / sum(sizes) * 1e6,
        "task_cpu": task_cpu / sum(sizes) * 1e6,
        "smallest": min(full),
        "largest": max(full),
        "events": sum(sizes),
    }


if __name__ == "__main__":
    main()
