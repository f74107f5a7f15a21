"""The job that snapshots and follows collections into tables.

One query reads the stream. Each batch is appended to the bronze table, and applied to the current
table. All writes may be repeated, so each change is in each table exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import OptionError
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.options import parse_options
from spark_sink.tables.batch_files import BatchFiles
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.transactions import transactions_in
from spark_sink.typed_documents import RESCUED

BRONZE, CURRENT, TRANSACTIONS = "bronze", "current", "transactions"
DEFAULT_TABLES = (BRONZE, CURRENT)
"""The tables that a job keeps unless others are named."""
NOTIFICATIONS = (
    "id string, aggregate_type string, type string, additional_data map<string, string>, "
    "timestamp long"
)
"""The columns of a job's table of notifications, before `timestamp` is made a timestamp."""
_DATE = "date_from_unix_date(CAST(floor(unix_seconds(clusterTime) / 86400) AS INT))"
"""The day of an event in UTC, whatever the session's time zone."""


def bronze_files(spark: SparkSession, folder: JobFolder) -> BatchFiles:
    """The bronze table of a job: all rows of the source, by namespace, date and batch."""
    return BatchFiles(spark, folder.bronze, ("namespace", "date"))


class TablesJob:
    """A job in a folder.

    options: of the source, `uri` included; tables: of BRONZE, CURRENT and TRANSACTIONS; buckets:
    parts of a new current table.
    """

    def __init__(
        self,
        folder: JobFolder,
        options: Mapping[str, str],
        tables: Sequence[str] = DEFAULT_TABLES,
        buckets: int = 16,
    ) -> None:
        self._folder = folder
        self._options = dict(options)
        self._tables = tuple(tables)
        self._buckets = buckets

    def start(self, spark: SparkSession, trigger: str | None) -> StreamingQuery:
        """Start the query; a query that has been interrupted goes on from its checkpoint.

        trigger: the pause between batches, such as "10 seconds"; None: process what there is at
        present, and end.
        """
        options = self._options
        if parse_options(options).snapshot.may_stream:  # a snapshot alone takes no signals
            options = {"signalFolder": self._folder.signals, **options}
        events = spark.readStream.format("mergerouter").options(**options).load()
        if RESCUED in events.columns:  # a count in the query's progress
            events = events.observe(BRONZE, F.count(RESCUED).alias("rescued"))
        writer = events.writeStream.foreachBatch(
            _Batches(self._folder, self._tables, self._buckets)
        )
        writer = writer.option("checkpointLocation", self._folder.checkpoint)
        if trigger is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=trigger)
        return writer.queryName("mergerouter").start()


class _Batches:
    """Writes batches to the tables."""

    def __init__(self, folder: JobFolder, tables: Sequence[str], buckets: int) -> None:
        self._folder = folder
        self._tables = tables
        self._buckets = buckets
        self._files: dict[str, BatchFiles] = {}

    def __call__(self, batch: DataFrame, number: int) -> None:
        several = len(self._tables) > 1
        rows = batch.persist(StorageLevel.MEMORY_AND_DISK) if several else batch
        try:
            if BRONZE in self._tables:
                dated = rows.withColumn("date", F.expr(_DATE))
                self._of(BRONZE, batch.sparkSession).write(dated, number)
            if CURRENT in self._tables:
                self._apply(rows, number)
            if TRANSACTIONS in self._tables:
                self._of(TRANSACTIONS, batch.sparkSession).write(transactions_in(rows), number)
            self._notify(batch.sparkSession, number)
        finally:
            if several:
                rows.unpersist()

    def _apply(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession

        def quarantine(events: DataFrame) -> None:
            self._of("quarantine", spark).write(events, number)

        table = CurrentTable(spark, self._folder.current, buckets=self._buckets)
        table.apply(rows, quarantine)

    def _notify(self, spark: SparkSession, number: int) -> None:
        """Write the notifications of a batch, which its offset has."""
        found = self._folder.offset(number).get("signals", {}).get("notifications")
        if found:
            rows = spark.createDataFrame(found, NOTIFICATIONS)
            written = rows.withColumn("timestamp", F.timestamp_millis("timestamp"))
            self._of("notifications", spark).write(written, number)

    def _of(self, name: str, spark: SparkSession) -> BatchFiles:
        if name not in self._files:
            self._files[name] = (
                bronze_files(spark, self._folder)
                if name == BRONZE
                else BatchFiles(spark, f"{self._folder.address}/{name}")
            )
        return self._files[name]


def namespace_options(namespaces: Sequence[str]) -> dict[str, str]:
    """The options of the source that choose collections ("shop.orders") and databases ("shop").

    Raises OptionError if both are mixed in a way that one stream cannot have.
    """
    pairs = [name.partition(".")[::2] for name in dict.fromkeys(namespaces)]
    if not pairs:
        return {}
    databases = sorted({database for database, _ in pairs})
    whole = [database for database, collection in pairs if not collection]
    if whole and len(whole) < len(pairs):
        raise OptionError(
            "databases and collections cannot be mixed: name collections only (shop.orders), or "
            "databases only (shop)"
        )
    if len(databases) == 1:
        chosen = {"database": databases[0]}
        if not whole:
            chosen["collection"] = ",".join(collection for _, collection in pairs)
        return chosen
    kind = "database.include.list" if whole else "collection.include.list"
    return {kind: ",".join(dict.fromkeys(namespaces)), "filters.match.mode": "literal"}
