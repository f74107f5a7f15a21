"""The source of a job's query, whose tasks write the tables' files instead of returning rows.

A task writes the files of a batch's rows, and stages its changes of the current table. Spark gets a
row for each task, with its files and their statistics, which the driver commits. A task that runs
twice leaves files that no commit names. Executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from functools import partial
from typing import cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_sink.dataclass_json import from_json
from spark_sink.errors import StreamError, without_traceback
from spark_sink.jobs.job_tables import CURRENT
from spark_sink.jobs.task_writer import TaskReport, TaskTables, TaskWriter
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.snapshot.selections import Namespace
from spark_sink.snapshot.unread import CollectionTokens, LostDocument
from spark_sink.source.batch_planner import QueryOutput
from spark_sink.source.data_source import MergerouterDataSource
from spark_sink.source.event_tasks import EventsTask
from spark_sink.source.offsets import Offset
from spark_sink.source.readers import MergerouterStreamReader
from spark_sink.source.schema import declared_schema, schema_for
from spark_sink.source.task_rows import Task, TaskPartition
from spark_sink.tables.executors import REPORT, reported
from spark_sink.tables.state_files import newest_state

FORMAT = "mergerouter-job"
TABLES = "jobTables"
"""The option with the tables, as JSON."""
BATCH_PROPERTY = "mergerouter.batch"
"""The local property through which tasks know the number of their batch."""


class JobSource(MergerouterDataSource):
    """The data source of jobs. Options: the source's, documentSchema as JSON, and TABLES."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._tables = from_json(TaskTables, options.pop(TABLES))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return REPORT, after a check of the options and of the connection."""
        super().schema()
        return REPORT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for one query. Raises OptionError."""
        with without_traceback():
            declared = declared_schema(parse_options(self.options))
            return super().streamReader(cast("StructType", declared))  # DDL is for sources alone

    def stream_reader(self, options: StreamOptions) -> JobStreamReader:
        """Return the reader for these options."""
        return JobStreamReader(options, self.loaded_at, self._tables)


class JobOutput(QueryOutput):
    """The current table of a job, if it has one; a start may change the scope."""

    follows_scope = True

    def __init__(self, tables: TaskTables) -> None:
        self._current = tables.addresses.get(CURRENT)
        self._namespaces = tables.namespaces
        self._seen: tuple[Offset, CollectionTokens, Sequence[LostDocument]] | None = None

    def unread(self, start: Offset) -> tuple[CollectionTokens, Sequence[LostDocument]]:
        """Return what the current table lacks, as the state of its newest version says."""
        if self._current is None:
            return {}, ()
        if self._seen is None or self._seen[0] != start:
            state = newest_state(self._current)
            self._seen = start, state.unread, state.lost
        return self._seen[1:]

    def namespaces(self) -> set[Namespace]:
        """Return the collections that had documents in the current table at the start."""
        return set(self._namespaces)


class JobStreamReader(MergerouterStreamReader):
    """Reads a batch in tasks, which write its files to `tables`."""

    def __init__(self, options: StreamOptions, loaded_at: float, tables: TaskTables) -> None:
        super().__init__(options, loaded_at, JobOutput(tables))
        self._tables = tables

    def small_batch(self, before: Offset, end: Offset) -> list[Task] | None:
        """Return the tasks of a small batch between two offsets, otherwise None.

        The driver reads it itself, because a job of Spark takes longer. Where the bytes of batches
        are limited, tasks read it, and report the size of events to their planner. Tasks read the
        documents of snapshots, too: the planner of Spark's tasks divides them once.
        """
        batch, reads_documents = end.events_after(before), end.snapshots.batch.reading is not None
        if not batch.is_small or reads_documents or self.options.max_bytes_per_trigger:
            return None
        added = self.added_tasks(before, end)
        return [*([EventsTask(batch.read_from, batch.end)] if batch.events else []), *added]

    def write(self, tasks: Sequence[Task], scope: Scope | None, number: int) -> TaskReport:
        """Write the files of tasks of a batch. Raises StreamError and OSError."""
        with TaskWriter(self._tables, schema_for(self.options), number) as writer:
            for task in tasks:
                for rows in self.rows(TaskPartition(task, scope)):
                    writer.add(rows)
            return writer.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the row of REPORT of one task. Raises StreamError and OSError."""
        with without_traceback():
            context = TaskContext.get()
            number = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
            if number is None:
                raise StreamError(f"the format {FORMAT} is for jobs: use mergerouter")
            read = cast("TaskPartition", partition)
            yield from reported(partial(self.write, [read.value], read.scope, int(number)))
