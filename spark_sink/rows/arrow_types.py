"""Schemas and rows of Arrow, made from those of Spark and of Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a schema of Spark, with times in UTC."""
    return types.to_arrow_schema(schema, timezone="UTC")


def rows_in(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Return rows as Python values."""
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def filtered(rows: Any, chosen: Any) -> Any:
    """Return the chosen rows of a table, batch or array; if all are chosen, nothing is copied."""
    return rows if pc.all(chosen, skip_nulls=False).as_py() else rows.filter(chosen)


def batch_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of Python values as a batch."""
    lists = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array(column, type=field.type) for column, field in zip(lists, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
