"""Verifies the tables of a job against the stream and the collections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from spark_sink.errors import OptionError
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.point_in_time import time_from_text
from spark_sink.jobs.tables_job import (
    BRONZE,
    CURRENT,
    DEFAULT_TABLES,
    appended_table,
    namespace_options,
)
from spark_sink.options.stream_options import named_options, parse_options
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.verify import verify, verify_bronze

_DOCUMENT_OPTIONS = (
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
    """The differences of a table: their number, the first of them, and why it was not compared."""

    count: int
    first: Sequence[Mapping[str, Any]] = ()
    remark: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return the outcome for json.dumps."""
        return {"differences": self.count, "first": list(self.first), "remark": self.remark}

    def __str__(self) -> str:
        if self.remark and not self.count:
            return self.remark
        if not self.count:
            return "no difference"
        lines = [f"{self.count} differences"]
        lines += ["  " + " ".join(str(value) for value in row.values()) for row in self.first]
        return "\n".join([*lines, *([self.remark] if self.remark else [])])


def verify_job(
    spark: SparkSession,
    folder: JobFolder,
    uri: str,
    tables: Sequence[str] | None = None,
    since: str | None = None,
    *,
    shown: int = 20,
) -> dict[str, Outcome]:
    """Return the outcome for each table of the job in a folder. Raises SourceError.

    Args:
        uri: the router.
        tables: which ones; None for all that the job writes.
        since: the cluster time from which on the bronze table is compared.
        shown: the most differences to return.
    """
    record = folder.record()
    wanted = tables or [name for name in record.tables if name in DEFAULT_TABLES]
    for name in wanted:
        if name not in record.tables:
            raise OptionError(f"the job in {folder.address} has no table {name}: correct --table")
    last = folder.last_committed()
    if last is None:
        return dict.fromkeys(wanted, Outcome(0, remark="not compared: no batch is committed yet"))
    scope = parse_options({**record.options, "uri": uri}).scope
    if last.end.scope not in (None, scope):
        remark = "not compared: the job has not changed its collections yet"
        return dict.fromkeys(wanted, Outcome(0, remark=remark))
    found = {}
    if BRONZE in wanted:
        found[BRONZE] = _bronze(spark, folder, record, uri, since, shown)
    if CURRENT in wanted:
        given = {**namespace_options(record.namespaces), **record.options}
        options = {"uri": uri, **document_options(given)}
        outcome = _outcome(verify(spark, folder.table(CURRENT), **options), shown)
        found[CURRENT] = replace(outcome, remark=_unread(folder.table(CURRENT)))
    return found


def _unread(address: str) -> str:
    names = sorted(map(".".join, CurrentTable.existing(address).state.unread))
    if not names:
        return ""
    return f"not compared: {', '.join(names[:20])}, which the job must read again"


def _bronze(
    spark: SparkSession,
    folder: JobFolder,
    record: JobRecord,
    uri: str,
    since: str | None,
    shown: int,
) -> Outcome:
    """Compare a version of the table with the stream up to the offset that its commit states."""
    table = appended_table(folder, BRONZE)
    if not table.log.exists:
        return Outcome(0, remark="not compared: there is no Delta table yet")
    offset = table.log.position()["offset"]
    if Offset.read(offset).running is not None:
        return Outcome(0, remark="not compared: the snapshot has not ended yet")
    moment = None if since is None else time_from_text(since, "--since")
    options = {**record.options, "uri": uri}
    return _outcome(verify_bronze(table.read(spark), options, offset, moment), shown)


def document_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return those options of the source that select the documents and fields of a table."""
    given = named_options(options)
    return {name: text for name, text in given.items() if name in _DOCUMENT_OPTIONS}


def _outcome(differences: DataFrame, shown: int) -> Outcome:
    kept = differences.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return Outcome(kept.count(), [row.asDict() for row in kept.take(shown)])
    finally:
        kept.unpersist()
