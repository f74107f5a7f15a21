"""Arrow types of Spark's types."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a schema of Spark, with times in UTC."""
    return types.to_arrow_schema(schema, timezone="UTC")
