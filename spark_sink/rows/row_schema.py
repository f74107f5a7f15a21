"""The schema of the source's rows, apart from the code that makes them (see `source.schema`)."""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_sink.rows.typed_documents import RESCUED, TYPED_COLUMNS

DOCUMENT_COLUMNS = ("documentKey", *TYPED_COLUMNS, "updateDescription")
UNIQUE_COLUMNS = ("token", "documentKey", "fullDocument", "fullDocumentBeforeChange", "event")
"""Columns whose values rarely repeat, so that a dictionary of Parquet's writer only costs time."""

_KINDS: dict[str, DataType] = {
    "string": StringType(), "long": LongType(), "timestamp": TimestampType(),
    "binary": BinaryType(), "boolean": BooleanType(),
}  # fmt: skip


def columns(text: str) -> list[StructField]:
    """Return columns such as "token string!, txnNumber long"; those with ! are never null."""
    pairs = (column.split() for column in text.split(","))
    return [StructField(name, _KINDS[kind.rstrip("!")], kind[-1] != "!") for name, kind in pairs]


def row_schema(
    *, raw_documents: bool = False, document_type: StructType | None = None
) -> StructType:
    """Return the columns of every row.

    Rows sort by `token` as the stream is ordered; clusterTime and clusterTimeOrdinal are the
    event's cluster time, the ordinal counting within a second. op is Debezium's letter; shard is
    the shard that the event was read from, null if a task read the merged stream. The columns of
    documents hold BSON with `raw_documents`, otherwise JSON; with a `document_type` TYPED_COLUMNS
    are such structs, and rows have the column RESCUED.
    """
    documents: DataType = BinaryType() if raw_documents else StringType()
    kinds = dict.fromkeys(DOCUMENT_COLUMNS, documents)
    if document_type is not None:
        kinds |= dict.fromkeys(TYPED_COLUMNS, document_type)
    return StructType(
        [
            *columns(
                "token string!, operationType string, clusterTime timestamp, clusterTimeOrdinal "
                "long, wallTime timestamp, namespace string, database string, collection string"
            ),
            *(StructField(name, kind) for name, kind in kinds.items()),
            *columns("event binary!, op string, snapshot boolean!, shard string"),
            StructField("lsid", documents),
            *columns("txnNumber long, to string"),
            StructField("splitEvent", StructType(columns("fragment long, of long"))),
            *([StructField(RESCUED, StringType())] if document_type is not None else []),
        ]
    )
