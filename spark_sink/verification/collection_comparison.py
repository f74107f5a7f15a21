"""Compares a current table with its collections, range by range, in tasks of Spark.

First the rows of the table are compared with the documents of their keys. Then the keys of the
collections are looked up in the table. The collections keep changing, and the table may be behind.
So keys that differ are compared again: their documents are read, and then the events up to one
later position of the stream are applied both to the rows of the table and to these documents. If
the results differ, table and collection differed before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from bson.timestamp import Timestamp
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.console import say
from spark_sink.dataclass_json import from_json, to_json
from spark_sink.events.positions import AtTime, after, key_of
from spark_sink.folders import Folder
from spark_sink.options.snapshot_options import TASKS
from spark_sink.options.stream_options import named_options, parse_options
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.plan import Chunk, SnapshotPlan
from spark_sink.snapshot.selections import CollectionPatterns
from spark_sink.spark_session import tasks_by_cores
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.ddl_events import unread_after
from spark_sink.tables.executors import REPORT_PROGRESS, MadeRows, rows_of
from spark_sink.tables.frame_fold import FrameFold
from spark_sink.tables.key_ranges import KeyRanges
from spark_sink.verification.comparison_tasks import DOCUMENTS, ROWS, SUSPECTS, ComparisonTasks
from spark_sink.verification.differences import DIFFERENCES, DOUBLED, document_differences

_OF_DOCUMENTS = ("database", "collection", "filters.", "snapshotFilters", "field.")
"""The prefixes of the options that select documents, and fields of documents."""
# The most rows or keys of one task, unless one file has more.
_TASK_ROWS = 100_000
# Seconds for which a step compares rows, at a given rate.
_STEP_SECONDS = 30
_MOST = 100_000  # differences, which the driver holds in memory
_KEPT = StorageLevel.MEMORY_AND_DISK
COMMAND, ROUND = "verify.json", "round.json"
"""The files of a job's folder with the progress of `job verify`, and of a running job's round."""


def document_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the source that select the documents and fields of a table."""
    given = named_options(options)
    return {name: text for name, text in given.items() if name.startswith(_OF_DOCUMENTS)}


def verify(spark: SparkSession, target: str, **options: str) -> DataFrame:
    """Return the differences between the table at `target` and the collections, at most 100,000.

    The options are those of the source from which the table was made: uri, database, collection,
    and snapshotFilters if the table holds a part of the documents.

    Columns: namespace, key, difference ("missing" in the table, "extra" in the table, "different",
    or DOUBLED), and the fields that differ. The order of fields is not compared, because an update
    without a post-image does not say where the server has put a new field. Collections outside of
    the scope, and those that the table must read again, are not compared either. Raises
    StreamError, and HistoryLostError if the table is too far behind.
    """
    for compared in Comparison(spark, target, options).steps():
        differences = compared.first
    names = DIFFERENCES.fieldNames()
    rows = [tuple(difference[name] for name in names) for difference in differences]
    return spark.createDataFrame(rows, DIFFERENCES).drop("token")


@dataclass(frozen=True)
class Compared:
    """The progress of a comparison, with which it continues after an interruption.

    Args:
        options: the options that select the documents, as JSON.
        table: the id of the table, which a table that is made again does not have.
        through: the cluster time at the beginning: every key is compared at this time or later.
        place: the place up to which the rows of the table were compared.
        plan: the plan for the keys of the collections; None until all rows were compared.
        rows: the number of rows and keys that were compared.
        count: the number of differences.
        first: the first differences, as DIFFERENCES.
    """

    options: str
    table: str
    through: Timestamp
    place: str = ""
    plan: SnapshotPlan | None = None
    rows: int = 0
    count: int = 0
    first: tuple[dict[str, Any], ...] = ()

    @property
    def ended(self) -> bool:
        """Whether everything was compared."""
        return self.plan is not None and self.plan.ended


class Comparison:
    """Compares a current table with the collections that the options of the source select.

    A step compares as many rows as two tasks for each core can, or those of half a minute at the
    rate.

    Args:
        rate: the most rows and keys a second, on average; None for no limit.
        most: how many differences are kept.

    Raises OptionError. Methods raise StreamError, Spark's errors, PyMongoError and OSError.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        options: Mapping[str, str],
        rate: float | None = None,
        most: int = _MOST,
    ) -> None:
        forms = ("documentSchema", "unknownFields", "documents")
        given = {n: text for n, text in named_options(options).items() if n not in forms}
        self._source = {**given, "documents": "raw"}
        tasks, self._rate = tasks_by_cores(spark), rate
        rows = tasks * _TASK_ROWS
        self._step_rows = rows if rate is None else max(1, min(rows, int(rate * _STEP_SECONDS)))
        keys = {TASKS: str(tasks), "snapshotChunkRows": str(-(-self._step_rows // tasks))}
        self._options = parse_options({**self._source, **keys})
        self._spark, self._most = spark, most
        self._table = CurrentTable.existing(target)
        self.selection = json.dumps(document_options(options), sort_keys=True)
        """The options that select the documents, as JSON."""

    def compare(
        self, folder: str, name: str, wait: Callable[[float], bool | None] = time.sleep
    ) -> Compared:
        """Compare everything, at the rate, and return what was found.

        An interrupted comparison of the same documents with the same table continues. Its progress
        is kept in the file `name` of a folder. `wait` is called with seconds; if it returns True,
        the comparison stops there.
        """
        files = Folder(folder)
        before = self._interrupted(files.text(name), name)
        rows, begun = 0 if before is None else before.rows, time.monotonic()
        for compared in self.steps(before):
            files.write(name, to_json(compared))
            REPORT_PROGRESS.get()(
                "rows and keys verified", compared.rows, 2 * self._table.log.count()
            )
            if self._rate is not None:
                due = begun + (compared.rows - rows) / self._rate
                if wait(max(0.0, due - time.monotonic())) and not compared.ended:
                    return compared
            rows, begun = compared.rows, time.monotonic()
        files.remove(name)  # so that the next comparison begins again
        return compared

    def _interrupted(self, text: str | None, name: str) -> Compared | None:
        """Return the unfinished comparison that the text of a file describes, and print that.

        The result is None unless it is one of these documents with this table.
        """
        try:
            begun = from_json(Compared, text or "")
        except (ValueError, KeyError, TypeError):  # no file, or one of another version
            return None
        if begun.ended or (begun.options, begun.table) != (self.selection, self._table.log.id):
            return None
        time = begun.through.as_datetime().isoformat()
        say(
            f"continues the comparison that has begun at {time}, of which {begun.rows:,} rows and "
            f"keys are done: remove {name} to begin again"
        )
        return begun

    def steps(self, compared: Compared | None = None) -> Iterator[Compared]:
        """Continue a comparison, or begin one, to its end; return the progress after each step."""
        with closing(RouterClient(self._options)) as client:
            options = self._options
            planner = ChunkPlanner(client.mongo, options.scope, options.snapshot)
            if compared is None:
                now = client.with_retries(client.present)
                compared = Compared(self.selection, self._table.log.id, now)
            while not compared.ended:
                compared = self._step(compared, client, planner)
                yield compared

    def _step(self, compared: Compared, client: RouterClient, planner: ChunkPlanner) -> Compared:
        """Compare the next rows, or the next keys of the collections; return the progress."""
        self._table.reload()
        table, now = self._table, client.with_retries(client.present)
        ranges = KeyRanges.of(table.log.files(), table.form.column, with_others=True)
        of_table = table.address, table.form, table.state.keys, ranges.files()
        of_version = ComparisonTasks(*of_table, self._options, now)
        place, tasks = compared.place, list[Callable[[], MadeRows]]()
        if compared.plan is None:
            place, tasks = of_version.tasks_after(ranges, place, self._step_rows)
        if not tasks:
            plan, chunks = client.with_retries(
                partial(self._next_chunks, compared.plan, planner, now)
            )
            compared = replace(compared, plan=plan)
            tasks = [partial(of_version.compare_keys, chunk) for chunk in chunks]
        if not tasks:
            return compared
        with ExitStack() as held:
            suspects = _held(held, rows_of(self._spark, tasks, SUSPECTS))
            sums = [F.sum("rows"), F.max("last"), F.count("place")]
            rows, last, count = suspects.agg(*sums).collect()[0]
            known = suspects.where(F.col("place").isNotNull())
            most = self._most - len(compared.first)
            again = self._compare_again(client, of_version, known, most) if count else (0, [])
        return replace(
            compared,
            rows=compared.rows + rows,
            place=last or place,
            count=compared.count + again[0],
            first=(*compared.first, *again[1]),
        )

    def _next_chunks(
        self, plan: SnapshotPlan | None, planner: ChunkPlanner, now: Timestamp
    ) -> tuple[SnapshotPlan, Iterator[Chunk]]:
        """Return the chunks of the collections that follow a plan, and the plan with them."""
        chosen = CollectionPatterns(self._options.snapshot.collections)
        plan = planner.next_batch(plan or planner.begin(now, chosen), chosen)
        return plan, chain.from_iterable(planner.tasks(plan, chosen))

    def _compare_again(
        self, client: RouterClient, of_version: ComparisonTasks, suspects: DataFrame, most: int
    ) -> tuple[int, list[dict[str, Any]]]:
        """Compare keys again; return the number of DIFFERENCES, and at most `most` of them."""
        names = F.split("place", "\0")
        doubled = suspects.where("doubled").select(
            F.concat_ws(".", names[0], names[1]).alias("namespace"),
            names[2].alias("key"),
            F.lit(DOUBLED).alias("difference"),
            F.array().cast("array<string>").alias("fields"),
            F.lit(None).cast("string").alias("token"),
        )
        wanted = suspects.where("not doubled").select("place", "id")
        with ExitStack() as held:
            rows = _held(held, self._differences(held, client, of_version, wanted).union(doubled))
            return rows.count(), [row.asDict() for row in rows.take(max(0, most))]

    def _differences(
        self, held: ExitStack, client: RouterClient, of_version: ComparisonTasks, wanted: DataFrame
    ) -> DataFrame:
        """Return the DIFFERENCES of keys, with both sides at one position of the stream."""
        table = self._table
        documents = _held(held, wanted.mapInArrow(of_version.documents, DOCUMENTS))
        documents.count()  # reads all of them before the end is chosen
        end = after(client.with_retries(client.present)).time
        upto = {"endAtOperationTime": f"{end.time},{end.inc}", **_start(table)}
        reader = self._spark.read.format("mergerouter").options(**self._source)
        changes = _held(held, reader.options(mode="changes", **upto).load())
        fold = FrameFold(table.state.keys, changes)
        left = fold.of_table(wanted.mapInArrow(of_version.table_rows, ROWS))
        right = fold.of_documents(documents)
        place = ["namespace", "key"]
        pairs = left.select(*place, "token", F.col("document").alias("table")).join(
            right.select(*place, F.col("document").alias("collection")), place, "full_outer"
        )
        unequal = pairs.where(~F.col("table").eqNullSafe(F.col("collection")))
        accepts = self._options.scope.accepts
        unread = unread_after(table.state.unread, fold.ddl_events, accepts)
        return unequal.mapInArrow(
            partial(document_differences, self._options.scope, unread), DIFFERENCES
        )


def _held(held: ExitStack, rows: DataFrame) -> DataFrame:
    """Return rows that are computed once, and kept until the stack is closed."""
    persisted = rows.persist(_KEPT)
    held.callback(persisted.unpersist)
    return persisted


def _start(table: CurrentTable) -> dict[str, str]:
    """Return the options of the changes that a table lacks.

    They begin where its job is: oplogs may have lost the last event of idle collections, and a seek
    may have left events out. Until a snapshot has ended, the table lacks what follows its last
    event, so they begin there.
    """
    through, offset = table.state.through, table.log.state().batch.end
    if offset is None or offset.is_in_snapshot or offset.sought is not None:
        return {"startAfter": through}
    if isinstance(offset.position, AtTime) and key_of(offset.position) > through:
        return {"startAtOperationTime": f"{offset.position.time.time},{offset.position.time.inc}"}
    return {"startAfter": through}
