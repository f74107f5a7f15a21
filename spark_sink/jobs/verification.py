"""Compares the tables of a job with the stream and with the collections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from spark_sink.errors import OptionError
from spark_sink.jobs.job_folder import JobFolder, JobRecord, LoggedBatch
from spark_sink.jobs.tables_job import (
    BRONZE,
    CURRENT,
    DEFAULT_TABLES,
    bronze_files,
    namespace_options,
)
from spark_sink.option_values import cluster_time
from spark_sink.options import named_options
from spark_sink.tables.verify import verify
from spark_sink.tables.verify_bronze import verify_bronze

# The options that say which documents and fields a table has.
_OF_DOCUMENTS = (
    "database",
    "collection",
    "database.include.list",
    "database.exclude.list",
    "collection.include.list",
    "collection.exclude.list",
    "filters.match.mode",
    "snapshotFilters",
    "field.exclude.list",
    "field.renames",
)


@dataclass(frozen=True)
class Outcome:
    """What differs. count: how many rows; first: some of them; remark: what was not compared."""

    count: int
    first: Sequence[Mapping[str, Any]] = ()
    remark: str = ""

    def to_document(self) -> dict[str, Any]:
        """The outcome for json.dumps."""
        return {"differences": self.count, "first": list(self.first), "remark": self.remark}

    def __str__(self) -> str:
        if self.remark:
            return self.remark
        if not self.count:
            return "no difference"
        lines = [f"{self.count} differences"]
        lines += ["  " + " ".join(str(value) for value in row.values()) for row in self.first]
        return "\n".join(lines)


def verify_job(
    spark: SparkSession,
    folder: JobFolder,
    uri: str,
    tables: Sequence[str] | None = None,
    since: str | None = None,
    *,
    shown: int = 20,
) -> dict[str, Outcome]:
    """The outcome of each table of the job in a folder.

    uri: the router; tables: which ones, None for all that the job keeps; since: a cluster time from
    which on the bronze table is compared; shown: differences to return at most.
    Raises SourceError.
    """
    record = folder.record()
    last = folder.last_committed()
    wanted = tables or [name for name in record.tables if name in DEFAULT_TABLES]
    for name in wanted:
        if name not in record.tables:
            raise OptionError(f"the job in {folder.address} keeps no table {name}: correct --table")
    if last is None:
        return dict.fromkeys(wanted, Outcome(0, remark="not compared: no batch is committed yet"))
    found = {}
    if BRONZE in wanted:
        found[BRONZE] = _bronze(spark, folder, record, uri, last, since, shown)
    if CURRENT in wanted:
        options = {"uri": uri, **_documents(record)}
        found[CURRENT] = _outcome(verify(spark, folder.current, **options), shown)
    return found


def _bronze(
    spark: SparkSession,
    folder: JobFolder,
    record: JobRecord,
    uri: str,
    last: LoggedBatch,
    since: str | None,
    shown: int,
) -> Outcome:
    plan = last.offset.get("snapshot")
    if plan is not None and not plan.get("ended"):
        return Outcome(0, remark="not compared: the snapshot has not ended yet")
    files = bronze_files(spark, folder)
    if not files.exists:
        return Outcome(0, remark="not compared: there are no rows yet")
    moment = None if since is None else _since(since)
    options = {**record.options, "uri": uri}
    return _outcome(verify_bronze(files.read(last.number), options, last.offset, moment), shown)


def _since(text: str) -> Any:
    try:
        return cluster_time(text)
    except ValueError as error:
        raise OptionError(f"--since: {error}") from None


def _documents(record: JobRecord) -> dict[str, str]:
    given = {**namespace_options(record.namespaces), **named_options(record.options)}
    return {name: text for name, text in given.items() if name in _OF_DOCUMENTS}


def _outcome(differences: DataFrame, shown: int) -> Outcome:
    kept = differences.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return Outcome(kept.count(), [row.asDict() for row in kept.take(shown)])
    finally:
        kept.unpersist()
