"""Parses the documents in rows of the source, such as those of a bronze table, into structs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from spark_sink.errors import OptionError
from spark_sink.events.runs import Run
from spark_sink.rows.event_rows import EventRows
from spark_sink.rows.row_schema import nullable
from spark_sink.rows.typed_documents import RESCUED, TYPED_COLUMNS, TypedDocuments


def parse_documents(
    rows: DataFrame, schema: StructType | str, *, unknown_fields: str = "rescue"
) -> DataFrame:
    """Return the rows as documents=typed gives them: the columns TYPED_COLUMNS are structs.

    The column RESCUED comes last and holds the documents that do not fit.

    Args:
        rows: of the source, with the column `event` and the columns to replace.
        schema: of the documents, also as Spark's DDL.
        unknown_fields: "rescue" or "ignore", as the option of the source.

    Raises OptionError if the rows or the schema cannot be used.
    """
    given = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(given, StructType):
        raise OptionError(f"the schema must name fields, not be {given.simpleString()}")
    kind = nullable(given)
    missing = [name for name in ("event", *TYPED_COLUMNS) if name not in rows.columns]
    if missing:
        raise OptionError(f"the rows have no column {missing[0]}: use complete rows of the source")
    if unknown_fields not in ("rescue", "ignore"):
        raise OptionError(f"unknown_fields must be rescue or ignore, not {unknown_fields!r}")
    try:
        documents = TypedDocuments(kind, rescues_unknown=unknown_fields == "rescue")
    except ValueError as error:
        raise OptionError(str(error)) from None
    fields = [
        StructField(field.name, kind) if field.name in TYPED_COLUMNS else field
        for field in rows.drop(RESCUED).schema.fields
    ]
    typed = StructType([*fields, StructField(RESCUED, StringType())])
    return rows.drop(RESCUED).mapInArrow(partial(_parsed, documents.schema, unknown_fields), typed)


def _parsed(
    schema: StructType, unknown_fields: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Make the typed columns of rows anew: a function for `mapInArrow`."""
    rows = EventRows(typed=TypedDocuments(schema, rescues_unknown=unknown_fields == "rescue"))
    for batch in batches:
        events = batch.column("event").to_pylist()
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for made in rows.batches([Run([""] * len(events), events)]):
            columns |= {name: made[name] for name in (*TYPED_COLUMNS, RESCUED)}
            yield pa.RecordBatch.from_pydict(columns)
