"""The schemas of the source's rows, and of the documents in them, as Spark's DDL or as its JSON.

A start that only checks its options imports this module, without the code that makes rows.
"""

from __future__ import annotations

import json
import re

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

from spark_sink.rows.typed_documents import RESCUED, TYPED_COLUMNS, TypedDocuments

DOCUMENT_COLUMNS = ("documentKey", *TYPED_COLUMNS, "updateDescription")
UNIQUE_COLUMNS = ("token", "documentKey", "fullDocument", "fullDocumentBeforeChange", "event")
"""Columns whose values rarely repeat, so that a dictionary of Parquet's writer only costs time."""

_KINDS: dict[str, DataType] = {
    "string": StringType(), "long": LongType(), "timestamp": TimestampType(),
    "binary": BinaryType(), "boolean": BooleanType(),
}  # fmt: skip

_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)
# Comments and quoted names, in which any character may be; a field with its type, in DDL.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`[^`]*`")
_FIELD = re.compile(r"\s*(\w+)\s*(?::|\s)\s*(\w+)")
_TYPES = re.compile(
    "ARRAY|BIGINT|BINARY|BOOLEAN|BYTE|CHAR|CHARACTER|DATE|DEC|DECIMAL|DOUBLE|FLOAT|INT|INTEGER|"
    "INTERVAL|LONG|MAP|NUMERIC|REAL|SHORT|SMALLINT|STRING|STRUCT|TIME|TIMESTAMP|TIMESTAMP_LTZ|"
    "TIMESTAMP_NTZ|TINYINT|VARCHAR|VARIANT|VOID",
    re.IGNORECASE,
)
_NULLABLE = re.compile(r'("(?:nullable|containsNull|valueContainsNull)"): ?false')


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


def document_schema(text: str) -> str:
    """Return a schema of documents as an option: Spark's DDL or its JSON. Raises ValueError."""
    if not text.strip():
        raise ValueError("must not be empty")
    if is_json_schema(text):
        TypedDocuments(schema_from_json(text))
    elif _NOT_NULL.search(_QUOTED.sub("", text)):
        raise ValueError("every field may be missing in a document: remove NOT NULL")
    else:
        require_types(text)
    return text


def require_types(ddl: str) -> None:
    """Raise ValueError for a field without a type of Spark.

    Spark's own error quotes the schema of whole rows, which the user has not written.
    """
    plain = _QUOTED.sub("quoted", ddl)
    while (inner := re.sub(r"<[^<>]*>|\([^()]*\)", "", plain)) != plain:
        plain = inner
    if alone := re.search(r"[<>()]", plain):
        raise ValueError(f"a {alone[0]!r} has no counterpart in {ddl.strip()!r}")
    for part in plain.split(","):
        field = _FIELD.match(part)
        if field is None:
            raise ValueError(f"{part.strip()!r} is not a name and a type, such as: n BIGINT")
        if not _TYPES.fullmatch(field[2]):
            raise ValueError(f"{field[2]!r}, the type of {field[1]!r}, is no type of Spark")


def is_json_schema(text: str) -> bool:
    """Return whether a schema is given as JSON."""
    return text.lstrip().startswith("{")


def schema_from_json(text: str) -> StructType:
    """Return a schema given as JSON, such as `df.schema.json()`, with all fields nullable.

    Raises ValueError.
    """
    try:
        kind = StructType.fromJson(json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a schema of Spark as JSON: {error}") from None
    return nullable(kind)


def nullable(kind: StructType) -> StructType:
    """Return the schema with all its fields nullable."""
    return StructType.fromJson(json.loads(_NULLABLE.sub(r"\1:true", kind.json())))


def ddl_of(kind: DataType) -> str:
    """Return a type in Spark's DDL, with all names quoted."""
    if isinstance(kind, StructType):
        fields = (f"`{field.name}`: {ddl_of(field.dataType)}" for field in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    return kind.simpleString()
