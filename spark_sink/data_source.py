"""`spark.readStream.format("mergerouter")`, `spark.read…`, and the same with `write`.

Spark's driver asks for the end of each micro-batch (`latestOffset`), writes it to the checkpoint,
and has tasks read what lies between two offsets (docs/design.md#feed-and-spark).

Readers and writers are imported where they are needed: a start that only reports that the router
is away does not need them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructType

from spark_sink.errors import OptionError, told_briefly
from spark_sink.options import StreamOptions, parse_options
from spark_sink.router_client import RouterClient
from spark_sink.row_schema import schema_for
from spark_sink.sink.write_options import parse_write_options
from spark_sink.typed_documents import TYPED_COLUMNS, ddl_of, from_json, is_json

if TYPE_CHECKING:
    from spark_sink.batch_reader import MergerouterBatchReader
    from spark_sink.sink.writers import MergerouterBatchWriter, MergerouterStreamWriter

FORMAT = "mergerouter"

_OLDEST_FOR_STREAMS, _OLDEST_FOR_WRITES = (4, 2), (4, 1)


class MergerouterDataSource(DataSource):
    """The data source behind the format name. Options: spark_sink.options.StreamOptions."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._loaded = time.time()

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType | str:
        """The options' schema; they and the router are checked here, before a query starts.

        It is DDL where the schema of documents is given so, since only Spark's JVM can parse that.
        Raises OptionError and StreamError.
        """
        with told_briefly():
            options = parse_options(self.options)
            options.snapshot.require_custom_mode()
            client = RouterClient(options)
            try:
                client.require_reachable()
            finally:
                client.close()
            return _declared(options)

    def reader(self, schema: StructType) -> MergerouterBatchReader:
        """The reader for one batch read. Raises OptionError."""
        from spark_sink.batch_reader import MergerouterBatchReader

        with told_briefly():
            return MergerouterBatchReader(self._options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader for one query. Raises OptionError."""
        if _spark_version() < _OLDEST_FOR_STREAMS:
            return RefusingStreamReader()
        with told_briefly():
            from spark_sink.stream_reader import MergerouterStreamReader

            options = self._options(schema)
            if options.batch_mode is not None or options.end is not None:
                raise OptionError(
                    "options 'mode', 'endAtOperationTime' and 'endAt' are for spark.read: a stream "
                    "has no end, and reads documents by option 'snapshotMode'"
                )
            return MergerouterStreamReader(options, self._loaded)

    def writer(self, schema: StructType, overwrite: bool) -> MergerouterBatchWriter:
        """The writer for one batch. Raises OptionError."""
        with told_briefly():
            _require_writers()
            from spark_sink.sink.writers import MergerouterBatchWriter, RowWriter

            if overwrite:
                raise OptionError(
                    "the sink changes documents by their keys and overwrites no collection: use "
                    "mode('append')"
                )
            return MergerouterBatchWriter(RowWriter(schema, parse_write_options(self.options)))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> MergerouterStreamWriter:
        """The writer for one query. Raises OptionError."""
        with told_briefly():
            _require_writers()
            from spark_sink.sink.writers import MergerouterStreamWriter, RowWriter

            if overwrite:
                raise OptionError("the sink has no output mode complete: use append or update")
            return MergerouterStreamWriter(RowWriter(schema, parse_write_options(self.options)))

    def _options(self, schema: StructType) -> StreamOptions:
        options = parse_options(self.options)
        names = schema.fieldNames()
        if options.document_schema is not None and TYPED_COLUMNS[0] in names:
            kind = schema[TYPED_COLUMNS[0]].dataType
            if isinstance(kind, StructType):
                options = replace(options, document_type=kind)
        if names != schema_for(options).fieldNames():
            raise OptionError(
                "the schema is fixed: leave .schema(…) out and select columns instead"
            )
        return options


class RefusingStreamReader(DataSourceStreamReader):
    """Refuses a stream on a Spark that is too old for it.

    Spark 4.0 and 4.1 replace what `streamReader` raises by an error of their own, and pass on what
    these methods raise.
    """

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise OptionError, which says which Spark is needed."""
        with told_briefly():
            raise OptionError(
                "streams need Spark 4.2 or newer, which tells a source where a batch begins; this "
                f"is Spark {pyspark.__version__}. Use a newer one, or spark.read"
            )

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802
        """Raise the same error: these versions of Spark ask for the latest offset first."""
        return self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Never called: there is no offset."""
        raise NotImplementedError


def _require_writers() -> None:
    """Raise OptionError if this Spark cannot hand over Arrow batches to be written."""
    if _spark_version() < _OLDEST_FOR_WRITES:
        raise OptionError(
            "writing needs Spark 4.1 or newer, which hands over Arrow batches; this is Spark "
            f"{pyspark.__version__}"
        )


def _spark_version() -> tuple[int, ...]:
    """The first two numbers of Spark's version."""
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def _declared(options: StreamOptions) -> StructType | str:
    given = options.document_schema
    if given is None:
        return schema_for(options)
    if is_json(given):
        return schema_for(replace(options, document_type=from_json(given)))
    anything = StructType().add("any", StringType())
    rows = schema_for(replace(options, document_type=anything))
    columns = []
    for field in rows.fields:
        kind = f"STRUCT<{given}>" if field.name in TYPED_COLUMNS else ddl_of(field.dataType)
        columns.append(f"`{field.name}` {kind}{'' if field.nullable else ' NOT NULL'}")
    return ", ".join(columns)
