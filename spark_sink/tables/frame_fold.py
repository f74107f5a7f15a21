"""`Fold` for frames of Spark: rows of a current table or of a snapshot, and the events after them.

Executors import this module (docs/on-a-cluster.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.events.positions import ABOVE_ALL_TOKENS
from spark_sink.tables.ddl_events import DDL_TYPES, ddl_event_of, renamed_by
from spark_sink.tables.executors import MadeRows
from spark_sink.tables.fold import Fold
from spark_sink.tables.keyed_rows import KEYED, KeyedRows
from spark_sink.tables.table_form import FormedRows, TableForm


class FrameFold:
    """Applies `changes`, rows of the source, to rows of a current table or of a snapshot.

    An event that cannot be applied removes its document, as in a job's table.

    Args:
        keys: the fields of the document key that identify a document.
        changes: with CHANGE_COLUMNS and `op`.
        form: of the rows that are returned, without KEY_RANGE.
    """

    def __init__(
        self, keys: Sequence[str], changes: DataFrame, form: TableForm | None = None
    ) -> None:
        rows = changes.where(F.col("operationType").isin(*DDL_TYPES)).select("event").collect()
        self.ddl_events = sorted(ddl_event_of(bytes(row.event)) for row in rows)
        """The DDL events among the changes."""
        self._keyed_rows = KeyedRows(keys, self.ddl_events)
        self._changes = self._keyed(changes.where(F.col("op").isNotNull()))
        self._form = form or TableForm()

    def of_table(self, rows: DataFrame) -> DataFrame:
        """Return rows with the columns BASE, and DELETED if there is one, after the changes."""
        return self._folded(rows.mapInArrow(self._keyed_rows.table_rows, KEYED))

    def of_documents(self, rows: DataFrame) -> DataFrame:
        """Return a snapshot's rows of the source after the changes, in the same form."""
        return self._folded(self._keyed(rows))

    def _keyed(self, rows: DataFrame) -> DataFrame:
        columns = rows.select("database", "collection", "token", "event")
        return columns.mapInArrow(self._keyed_rows.events, KEYED)

    def _folded(self, rows: DataFrame) -> DataFrame:
        by_key = rows.union(self._changes).repartition("place")
        by_key = by_key.sortWithinPartitions("place", "token", "kind")
        # Updates of documents that are deleted afterwards need no base.
        keeps, renamed = self._form.keeps_deleted, renamed_by(self.ddl_events)
        fold = Fold(ABOVE_ALL_TOKENS, keeps_deleted=keeps, renamed=renamed)
        return by_key.mapInArrow(partial(_documents, self._form, fold), self._form.spark_schema)


def _documents(form: TableForm, fold: Fold, batches: Iterable[pa.RecordBatch]) -> MadeRows:
    """Fold sorted rows of KEYED into rows of a form: a function for `mapInArrow`."""
    formed = FormedRows(form)
    for rows in fold(batches):
        made, _ = formed.from_fold(fold.moved(rows.filter(pc.is_null(rows["problem"]))))
        yield from made.to_batches()
