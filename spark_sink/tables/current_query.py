"""Queries of the user's own that keep a current table."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.delta_log import Batch, DeltaLog


def apply_changes(
    events: DataFrame, target: str, keys: Sequence[str] = ("_id",)
) -> DataStreamWriter | None:
    """Keep the table at `target` equal to the collections that `events` come from.

    For a stream this returns a writer, to be started with a checkpointLocation; the events of a
    batch are applied immediately. Applying events again changes nothing. With its first batch a
    query ends an earlier start of it that still runs.

    Args:
        events: rows of this package's source, with its columns.
        keys: the fields of the document key that identify a document.

    Raises OptionError if the table has other keys. The query, or the call, fails with StreamError
    if an update without a post-image changes a document that the table does not have.
    """
    if not events.isStreaming:
        CurrentTable(target, keys).apply(events)
        return None
    epoch = DeltaLog(target).later_epoch()

    def apply(rows: DataFrame, batch_id: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        table = CurrentTable(target, keys, epoch=epoch)
        table.apply(rows, Batch(query, batch_id) if query else None)

    return events.writeStream.foreachBatch(apply)
