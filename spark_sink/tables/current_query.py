"""Queries of the user's own that keep a current table, and tables of the former form."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.delta_log import Batch, DeltaLog
from spark_sink.tables.former_tables import FormerFolder, announce
from spark_sink.tables.staged_changes import remove_changes
from spark_sink.tables.table_state import TableState


def apply_changes(
    events: DataFrame, target: str, keys: Sequence[str] = ("_id",)
) -> DataStreamWriter | None:
    """Keep the table at `target` equal to the collections that `events` come from.

    For a stream this returns a writer, to be started with a checkpointLocation; the events of a
    batch are applied immediately. Applying events again changes nothing.

    Args:
        events: rows of this package's source, with its columns.
        keys: the fields of the document key that identify a document.

    Raises OptionError if the table has other keys. The query, or the call, fails with StreamError
    if an update without a post-image changes a document that the table does not have.
    """
    rewrite_former_current(events.sparkSession, target)
    remove_changes(target)
    if not events.isStreaming:
        CurrentTable(target, keys).apply(events)
        return None

    def apply(rows: DataFrame, batch_id: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        CurrentTable(target, keys).apply(rows, Batch(query, batch_id) if query else None)

    return events.writeStream.foreachBatch(apply)


def rewrite_former_current(spark: SparkSession | None, target: str) -> None:
    """Rewrite a table of the form without Delta, if there is one at `target`. Raises StreamError.

    An interrupted rewriting begins again; one that is committed only removes the former files.
    """
    former = FormerFolder(target)
    version = former.version()
    if version is None:
        return
    if not DeltaLog(target).exists:
        announce(target)
        keys = tuple(version["keys"])
        starts = version["complete_from"], version["complete_in"]
        state = TableState(keys, (), version["through"], *starts)
        table = CurrentTable(target, keys, first=state)
        files = [name for names in version["files"].values() for name in names]
        table.apply_staged(spark, [table.staged(spark, files)])
    former.remove("data", "versions")
