"""The schema of the source's rows, apart from the code that makes the rows.

A start first checks its options and connects to the router, in a process of its own. It imports
this module and neither pyarrow nor the planners, so that a router that is away is reported sooner.
"""

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

from spark_sink.errors import OptionError
from spark_sink.options import StreamOptions
from spark_sink.typed_documents import RESCUED, TYPED_COLUMNS, TypedDocuments

DOCUMENT_COLUMNS = ("documentKey", *TYPED_COLUMNS, "updateDescription")

_FRAGMENT = StructType([StructField("fragment", LongType()), StructField("of", LongType())])


def row_schema(
    *, raw_documents: bool = False, document_type: StructType | None = None
) -> StructType:
    """The columns of every row.

    raw_documents: the columns of documents hold BSON instead of JSON; document_type: of the structs
    in TYPED_COLUMNS, beside which rows have the column RESCUED.

    Rows sort by `token` as the stream is ordered; clusterTime and clusterTimeOrdinal are the
    event's cluster time, the ordinal counting within a second. op is Debezium's letter; shard is
    the shard that the event was read from, null where a task read the merged stream.
    """
    documents: DataType = BinaryType() if raw_documents else StringType()
    kinds = dict.fromkeys(DOCUMENT_COLUMNS, documents)
    if document_type is not None:
        kinds |= dict.fromkeys(TYPED_COLUMNS, document_type)
    return StructType(
        [
            StructField("token", StringType(), nullable=False),
            StructField("operationType", StringType()),
            StructField("clusterTime", TimestampType()),
            StructField("clusterTimeOrdinal", LongType()),
            StructField("wallTime", TimestampType()),
            StructField("namespace", StringType()),
            StructField("database", StringType()),
            StructField("collection", StringType()),
            *(StructField(name, kind) for name, kind in kinds.items()),
            StructField("event", BinaryType(), nullable=False),
            StructField("op", StringType()),
            StructField("snapshot", BooleanType(), nullable=False),
            StructField("shard", StringType()),
            StructField("lsid", documents),
            StructField("txnNumber", LongType()),
            StructField("to", StringType()),
            StructField("splitEvent", _FRAGMENT),
            *([StructField(RESCUED, StringType())] if document_type is not None else []),
        ]
    )


def typed_documents(options: StreamOptions) -> TypedDocuments | None:
    """The maker of structs of documents; None where the options ask for no structs.

    Raises OptionError for a schema that cannot be used.
    """
    if options.document_type is None:
        return None
    try:
        return TypedDocuments(options.document_type, rescues_unknown=options.rescues_unknown)
    except ValueError as error:
        raise OptionError(f"option 'documentSchema': {error}") from None


def schema_for(options: StreamOptions) -> StructType:
    """The schema of the rows that the options ask for. Raises OptionError as `typed_documents`."""
    typed_documents(options)
    return row_schema(raw_documents=options.raw_documents, document_type=options.document_type)
