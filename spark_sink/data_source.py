"""`spark.readStream.format("mergerouter")`, `spark.read…`, and the same with `write`.

Spark's driver asks for the end of each micro-batch (`latestOffset`), writes it to the checkpoint,
and has tasks read what lies between two offsets (docs/design.md#feed-and-spark).
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_sink.batch_reader import MergerouterBatchReader
from spark_sink.errors import OptionError, told_briefly
from spark_sink.options import StreamOptions, parse_options
from spark_sink.partitions import rows_for
from spark_sink.router_client import RouterClient
from spark_sink.sink.write_options import parse_write_options
from spark_sink.sink.writers import MergerouterBatchWriter, MergerouterStreamWriter, RowWriter
from spark_sink.stream_reader import MergerouterStreamReader

FORMAT = "mergerouter"


class MergerouterDataSource(DataSource):
    """The data source behind the format name. Options: spark_sink.options.StreamOptions."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._loaded = time.time()

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """The options' schema; they and the router are checked here, before a query starts.

        Raises OptionError and StreamError.
        """
        with told_briefly():
            options = parse_options(self.options)
            client = RouterClient(options)
            try:
                client.require_reachable()
            finally:
                client.close()
            return rows_for(options).schema

    def reader(self, schema: StructType) -> MergerouterBatchReader:
        """The reader for one batch read. Raises OptionError."""
        with told_briefly():
            return MergerouterBatchReader(self._options(schema))

    def streamReader(self, schema: StructType) -> MergerouterStreamReader:  # noqa: N802
        """The reader for one query. Raises OptionError."""
        with told_briefly():
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
            if overwrite:
                raise OptionError("the sink has no output mode complete: use append or update")
            return MergerouterStreamWriter(RowWriter(schema, parse_write_options(self.options)))

    def _options(self, schema: StructType) -> StreamOptions:
        options = parse_options(self.options)
        if schema.fieldNames() != rows_for(options).schema.fieldNames():
            raise OptionError(
                "the schema is fixed: leave .schema(…) out and select columns instead"
            )
        return options
