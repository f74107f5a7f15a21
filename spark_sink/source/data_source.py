"""`spark.readStream.format("mergerouter")`, `spark.read…`, and the same with `write`.

Spark's driver asks for the end of each micro-batch (`latestOffset`), writes it to the checkpoint,
and has tasks read what lies between two offsets (docs/spark-rationale.md).

Readers and writers are imported when needed: a start that only reports an unreachable router does
not need them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError, without_traceback
from spark_sink.mongodb_sink.changes import WriteOptions, parse_write_options
from spark_sink.options.snapshot_options import TASKS, custom_mode
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.rows.typed_documents import TYPED_COLUMNS
from spark_sink.source.schema import declared_schema, schema_for
from spark_sink.stream.router_client import RouterClient

if TYPE_CHECKING:
    from spark_sink.mongodb_sink.writers import MergerouterBatchWriter, MergerouterStreamWriter
    from spark_sink.source.readers import MergerouterBatchReader, MergerouterStreamReader

FORMAT = "mergerouter"

_OLDEST_FOR_STREAMS, _OLDEST_FOR_WRITES = (4, 2), (4, 1)


class MergerouterDataSource(DataSource):
    """The data source behind the format name. Options: spark_sink.options."""

    tasks_by_cores: ClassVar[int | None] = None
    """The default of the option with the tasks of a snapshot's batch, by the cores of a session."""
    repeats_tasks: ClassVar[bool] = False
    """Whether Spark may run a second attempt of a task beside the first one."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.loaded_at = time.time()
        """When the query was loaded, in seconds since 1970."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Return the options' schema, after a check of the options and of the connection.

        It is DDL if the schema of documents is DDL, which only Spark's JVM can parse. Raises
        OptionError and StreamError.
        """
        with without_traceback():
            options = self._parsed()
            if options.snapshot.custom:
                custom_mode(options.snapshot.custom)
            with closing(RouterClient(options)) as client:
                client.require_stream()
                if options.masked_fields:
                    from spark_sink.source.option_checks import require_maskable

                    require_maskable(client, options)
            if self.name() == FORMAT and options.batch_mode is None:  # a job has printed them
                from spark_sink.source.option_checks import warn_of_unmatched_names

                warn_of_unmatched_names(self.options)
            return declared_schema(options)

    def reader(self, schema: StructType) -> MergerouterBatchReader:
        """Return the reader for one batch read. Raises OptionError."""
        from spark_sink.source.readers import MergerouterBatchReader

        with without_traceback():
            return MergerouterBatchReader(self._options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for one query. Raises OptionError."""
        if _spark_version() < _OLDEST_FOR_STREAMS:
            return RefusingStreamReader()
        with without_traceback():
            options = self._options(schema)
            if options.batch_mode is not None or options.end is not None:
                raise OptionError(
                    "options 'mode', 'endAtOperationTime' and 'endAt' are for spark.read: a stream "
                    "has no end, and reads documents by option 'snapshotMode'"
                )
            return self.stream_reader(options)

    def stream_reader(self, options: StreamOptions) -> MergerouterStreamReader:
        """Return the reader of streams for these options."""
        from spark_sink.source.readers import MergerouterStreamReader

        return MergerouterStreamReader(options, self.loaded_at)

    def writer(self, schema: StructType, overwrite: bool) -> MergerouterBatchWriter:
        """Return the writer for one batch. Raises OptionError."""
        with without_traceback():
            from spark_sink.mongodb_sink.writers import MergerouterBatchWriter

            return MergerouterBatchWriter(schema, self._write_options(overwrite))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> MergerouterStreamWriter:
        """Return the writer for one query. Raises OptionError."""
        with without_traceback():
            from spark_sink.mongodb_sink.writers import MergerouterStreamWriter

            return MergerouterStreamWriter(schema, self._write_options(overwrite))

    def _write_options(self, overwrite: bool) -> WriteOptions:
        """Return the sink's options. Raises OptionError, also if this Spark cannot write."""
        if overwrite:
            raise OptionError(
                "the sink changes documents by their keys and overwrites no collection: use mode "
                "append, in a stream append or update"
            )
        if self.repeats_tasks:
            raise OptionError(
                "the sink requires spark.speculation=false: the slower attempt of a task could "
                "write a document again that a later batch has deleted"
            )
        if _spark_version() < _OLDEST_FOR_WRITES:
            raise OptionError(
                "writing requires Spark 4.1 or newer, which passes Arrow batches; this is Spark "
                f"{pyspark.__version__}"
            )
        return parse_write_options(self.options)

    def _parsed(self) -> StreamOptions:
        """Return the options of a read, with the session's default of tasks. Raises OptionError."""
        given = {name.lower(): value for name, value in self.options.items()}
        if self.tasks_by_cores is not None:
            given.setdefault(TASKS.lower(), str(self.tasks_by_cores))
        return parse_options(given)

    def _options(self, schema: StructType) -> StreamOptions:
        options = self._parsed()
        names = schema.fieldNames()
        if options.document_schema is not None and TYPED_COLUMNS[0] in names:
            kind = schema[TYPED_COLUMNS[0]].dataType
            if isinstance(kind, StructType):
                options = replace(options, document_type=kind)
        if names != schema_for(options).fieldNames():
            raise OptionError("the schema is fixed: remove .schema(…) and select columns instead")
        return options


class RefusingStreamReader(DataSourceStreamReader):
    """Refuses a stream on a Spark that is too old for it.

    Spark 4.0 and 4.1 replace the errors of `streamReader`, but not those of these methods.
    """

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise OptionError, which states which Spark is needed."""
        with without_traceback():
            raise OptionError(
                "streams require Spark 4.2 or newer, which passes the start of a batch to "
                f"a source; this is Spark {pyspark.__version__}. Use a newer one, or spark.read"
            )

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802
        """Raise the same error: these versions of Spark ask for the latest offset first."""
        return self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Never called: there is no offset."""
        raise NotImplementedError


def _spark_version() -> tuple[int, ...]:
    """Return the first two numbers of Spark's version."""
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2])
