"""Arrow types of Spark's types, on all of the versions of Spark that are supported.

Spark 4.2 has renamed the argument by which `pyspark` is asked for times in UTC; before, UTC is what
it gives when it is asked for nothing.
"""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import DataType, StructType

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(types.to_arrow_type).parameters else {}
)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of a type of Spark, with times in UTC."""
    return types.to_arrow_type(kind, **_IN_UTC)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a schema of Spark, with times in UTC."""
    return types.to_arrow_schema(schema, **_IN_UTC)
