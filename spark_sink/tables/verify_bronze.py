"""Compares a table of a stream's rows with the stream itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bson
from bson.timestamp import Timestamp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.events.positions import AtTime, Token, after, key_of, time_in
from spark_sink.options.snapshot_options import MODE_OPTIONS
from spark_sink.options.stream_options import named_options, parse_options
from spark_sink.source.offsets import Offsets

# Rows that are not events of the stream.
_MARKS = ("snapshotEnd", "heartbeat")

DIFFERENCES = "namespace string, token string, operationType string, difference string"
_OTHER_STARTS = (*MODE_OPTIONS, "startAtOperationTime", "resumeAfter", "startAfter")


def verify_bronze(
    rows: DataFrame,
    options: Mapping[str, str],
    through: Mapping[str, Any],
    since: Timestamp | None = None,
) -> DataFrame:
    """Return the differences between rows of the source and the stream.

    Columns: namespace, token, operationType, and difference: "missing" or "doubled" in the rows, or
    "extra", which the stream does not have.

    Args:
        rows: those of a version of the table.
        options: of the source.
        through: the offset at which its last batch ends.
        since: where the comparison begins; None for the first event that the rows should contain.
            It begins after the last change of the scope at least.

    Raises StreamError, and HistoryLostError if the oplogs do not reach back so far.
    """
    named = named_options(options)
    given = {name: text for name, text in named.items() if name not in _OTHER_STARTS}
    offsets = Offsets(parse_options(given).scope).of(through)
    end = offsets.read(through)
    first = _first_token(rows) if since is None else key_of(AtTime(since))
    if first is not None and offsets.since is not None:
        first = max(first, key_of(AtTime(offsets.since)))
    if first is None:
        return rows.sparkSession.createDataFrame([], DIFFERENCES)
    start = time_in(first)
    given |= {"mode": "changes", "startAtOperationTime": f"{start.time},{start.inc}"}
    match end:
        case Token():
            given["endAt"] = end.data
        case AtTime(time):
            given["endAtOperationTime"] = f"{time.time},{time.inc}"
    stream = rows.sparkSession.read.format("mergerouter").options(**given).load()
    columns = ("token", "namespace", "operationType")
    kept = rows.where(~F.col("operationType").isin(*_MARKS) & ~F.col("snapshot"))
    kept = kept.where(F.col("token") >= first).groupBy(*columns).agg(F.count("*").alias("times"))
    sent = stream.where(F.col("token") >= first).select(*columns, F.lit(1).alias("sent"))
    difference = (
        F.when(F.col("times").isNull(), "missing")
        .when(F.col("sent").isNull(), "extra")
        .when(F.col("times") > 1, "doubled")
    )
    pairs = kept.alias("kept").join(sent.alias("sent"), "token", "full_outer")
    found = pairs.withColumn("difference", difference).where(F.col("difference").isNotNull())
    both = [
        F.coalesce(F.col(f"kept.{name}"), F.col(f"sent.{name}")).alias(name)
        for name in ("namespace", "operationType")
    ]
    return found.select(both[0], "token", both[1], "difference").orderBy("token")


def _first_token(rows: DataFrame) -> str | None:
    """Return where the rows' events begin: after the first snapshot, or with the first event."""
    ends = rows.where(F.col("operationType") == "snapshotEnd").orderBy("token").select("event")
    found = [bson.decode(bytes(row.event)) for row in ends.collect()]
    snapshots = [event for event in found if not event.get("requested")]
    events = rows.where(~F.col("snapshot") & ~F.col("operationType").isin(*_MARKS))
    first: str | None = events.agg(F.min("token")).collect()[0][0]
    if not snapshots:
        return first
    mark: Timestamp = snapshots[0]["clusterTime"]
    behind = key_of(after(mark))
    return behind if first is None else min(first, behind)
