"""A table of Parquet files that holds the documents of collections as of a point in the stream.

Keys are hashed into buckets; applying events rewrites the buckets that they belong to and then
makes the new version the current one, at once for all readers. Layout: spark_sink.tables.versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import bson
from bson.timestamp import Timestamp
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_sink.errors import OptionError
from spark_sink.positions import high_water_mark
from spark_sink.tables.definitions import DEFINITIONS, Definition, collections_of, definition_of
from spark_sink.tables.fold import FOLDED, PREPARED, TABLE, Fold, Prepare
from spark_sink.tables.versions import Version, VersionLog

_CHANGES = ("insert", "update", "replace", "delete", "read")
_DEFAULT_BUCKETS = 16
_PLACE = ("database", "collection", "key")
_ASIDE = "-1"
"""The bucket of events that cannot be applied."""

Quarantine = Callable[[DataFrame], None]
"""Keeps the events that could not be applied: namespace, database, collection, key, token,
clusterTime, problem, event."""


def apply_changes(
    events: DataFrame,
    target: str,
    keys: Sequence[str] = ("_id",),
    *,
    buckets: int = _DEFAULT_BUCKETS,
) -> DataStreamWriter | None:
    """Keep the table at `target` equal to the collections that `events` come from.

    events: rows of this package's source, with the columns that it gives them. Of a stream, this
    returns a writer, which needs a checkpointLocation and is to be started; of a batch the events
    are applied at once. Applying events again changes nothing.
    keys: the fields of the document key that identify a document; buckets: into how many parts a
    new table is cut, which are rewritten as a whole.

    Raises OptionError if the table has other keys. The query, or the call, fails with StreamError
    if an update has no post-image and changes a document that the table does not have.
    """
    if not events.isStreaming:
        CurrentTable(events.sparkSession, target, keys, buckets=buckets).apply(events)
        return None

    def apply(batch: DataFrame, batch_id: int) -> None:
        CurrentTable(batch.sparkSession, target, keys, buckets=buckets).apply(batch)

    return events.writeStream.foreachBatch(apply)


class CurrentTable:
    """The table in the folder `target`; see apply_changes. Only one query may write to a table."""

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        keys: Sequence[str] = ("_id",),
        *,
        buckets: int = _DEFAULT_BUCKETS,
    ) -> None:
        self._spark = spark
        self._log = VersionLog(spark, target)
        self._version = self._log.newest()
        if not self._version.number:
            self._version = Version(buckets=buckets, keys=tuple(keys))
        elif self._version.keys != tuple(keys):
            raise OptionError(
                f"the table at {target} has the keys {', '.join(self._version.keys)}: use these, "
                "or write to another folder"
            )

    @classmethod
    def existing(cls, spark: SparkSession, target: str) -> CurrentTable:
        """The table in a folder, with the keys that it has. Raises OptionError if there is none."""
        version = VersionLog(spark, target).newest()
        if not version.number:
            raise OptionError(f"there is no current table at {target}: correct the path")
        return cls(spark, target, version.keys)

    @property
    def version(self) -> Version:
        """The version that `read` reads, number 0 for a table that does not exist yet."""
        return self._version

    def read(self) -> DataFrame:
        """The rows of the current version (columns: spark_sink.tables.fold.TABLE)."""
        names = [name for files in self._version.files.values() for name in files]
        return self._of(names)

    def apply(self, events: DataFrame, quarantine: Quarantine | None = None) -> None:
        """Apply rows of the source, and make the result the current version.

        quarantine: is called with the events that cannot be applied, before the version becomes the
        current one; a document with such an event leaves the table until a later event has all of
        it. Without it such an event raises StreamError, and the version stays.
        """
        narrow = events.select("database", "collection", "operationType", "token", "event")
        narrow = narrow.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            definitions, version = self._announced(narrow)
            changes = narrow.where(F.col("operationType").isin(*_CHANGES))
            tolerant = quarantine is not None
            prepared = self.prepared(changes, definitions, tolerant=tolerant)
            touched = self._buckets_of(prepared, everything=bool(definitions))
            if not touched:
                if version != self._version:
                    self._commit(replace(version, number=version.number + 1))
                return
            names = [name for bucket in touched for name in version.files.get(bucket, ())]
            rows = self.prepared_rows(self._of(names), definitions)
            folder = self._log.new_folder()
            fold = Fold(version.complete_from, version.complete_in, tolerant)
            folded = self.folded(prepared.union(rows), fold, len(touched))
            bucket = F.when(F.col("problem").isNull(), self._bucket()).otherwise(int(_ASIDE))
            folded.withColumn("bucket", bucket).write.partitionBy("bucket").parquet(
                self._log.path(folder)
            )
            kept = {name: files for name, files in version.files.items() if name not in touched}
            files = {**kept, **self._log.files_in(folder)}
            aside = files.pop(_ASIDE, ())
            if aside and quarantine is not None:
                quarantine(self._problems(aside))
            self._commit(replace(version, number=version.number + 1, files=files, data=folder))
        finally:
            narrow.unpersist()

    def prepared(
        self,
        changes: DataFrame,
        definitions: Sequence[Definition] = (),
        *,
        tolerant: bool = False,
    ) -> DataFrame:
        """Rows of the source, with their keys."""
        prepare = Prepare(self._version.keys, definitions, tolerant)
        columns = changes.select("database", "collection", "token", "event")
        return columns.mapInArrow(prepare.events, PREPARED)

    def prepared_rows(self, rows: DataFrame, definitions: Sequence[Definition] = ()) -> DataFrame:
        """Rows of a table in the same form."""
        prepare = Prepare(self._version.keys, definitions)
        columns = rows.select(*_PLACE, "token", "documentKey", "document")
        return columns.mapInArrow(prepare.table_rows, PREPARED)

    def folded(self, prepared: DataFrame, fold: Fold, parts: int) -> DataFrame:
        """The rows of a table that prepared rows come to, as FOLDED."""
        return (
            prepared.withColumn("bucket", self._bucket())
            .repartition(max(1, parts), "bucket")
            .sortWithinPartitions("bucket", *_PLACE, "token", "kind")
            .drop("bucket")
            .mapInArrow(fold, FOLDED)
        )

    def _announced(self, events: DataFrame) -> tuple[list[Definition], Version]:
        """The definitions among the events, and the version with what the events say about it."""
        version = self._version
        found = events.where(F.col("operationType").isin(*DEFINITIONS)).select("event").collect()
        definitions = sorted(definition_of(bytes(row.event)) for row in found)
        is_read = F.col("operationType") == "read"
        last = F.max(F.when(~is_read & (F.col("operationType") != "snapshotEnd"), F.col("token")))
        row = events.agg(last).collect()[0]
        # A snapshot of some collections ends at a time that the stream may not have reached yet.
        reached = (each.token for each in definitions if not each.collections)
        through = max([version.through, row[0] or "", *reached])
        if not through:
            first = events.where(is_read).orderBy("token").select("token", "event").take(1)
            through = _streamed_before(first[0]) if first else ""
        version = replace(version, through=through)
        for each in found:
            version = _completed(version, bson.decode(bytes(each.event)))
        return definitions, version

    def _buckets_of(self, prepared: DataFrame, *, everything: bool) -> list[str]:
        if everything:
            return [str(number) for number in range(self._version.buckets)]
        found = prepared.select(self._bucket().alias("bucket")).distinct().collect()
        return sorted(str(row.bucket) for row in found)

    def _bucket(self) -> Column:
        return F.pmod(F.xxhash64(*_PLACE), F.lit(self._version.buckets)).cast("int")

    def _problems(self, names: Sequence[str]) -> DataFrame:
        rows = self._spark.read.schema(FOLDED).parquet(*(self._log.path(name) for name in names))
        columns = ["namespace", *_PLACE, "token", "clusterTime", "problem"]
        return rows.select(*columns, F.col("document").alias("event"))

    def _of(self, names: Sequence[str]) -> DataFrame:
        paths = [self._log.path(name) for name in names]
        if not paths:
            return self._spark.createDataFrame([], TABLE)
        return self._spark.read.schema(TABLE).parquet(*paths)

    def _commit(self, version: Version) -> None:
        self._log.commit(version)
        self._version = version


def _completed(version: Version, event: Mapping[str, Any]) -> Version:
    """The version after an event, which may be the end of a snapshot."""
    if event["operationType"] != "snapshotEnd":
        return version
    until: Timestamp = event["readUntil"]
    token = high_water_mark(Timestamp(until.time, until.inc + 1))
    collections = collections_of(event)
    if not collections:
        return replace(version, complete_from=max(version.complete_from, token))
    later = {f"{database}.{name}": token for database, name in collections}
    return replace(version, complete_in={**version.complete_in, **later})


def _streamed_before(row: Row) -> str:
    """The token of the last event before a row of a snapshot."""
    signal: Mapping[str, Any] = bson.decode(bytes(row.event)).get("signal") or {}
    return str(signal.get("streamed") or row.token)
