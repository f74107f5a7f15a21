"""Arrow types of Spark's types, for all supported versions of Spark.

Spark 4.2 has renamed the argument for times in UTC; before, UTC is the default.
"""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(types.to_arrow_type).parameters else {}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a schema of Spark, with times in UTC."""
    return types.to_arrow_schema(schema, **_IN_UTC)
