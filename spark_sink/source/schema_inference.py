"""Infers a schema for typed documents from a sample of a collection."""

from __future__ import annotations

import json
import re
from contextlib import closing

from pyspark.sql.types import StructType

from spark_sink.errors import OptionError
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.inferred_schema import schema_of
from spark_sink.stream.router_client import RouterClient

_SAMPLE = 1000
_INT = re.compile(r'("(?:type|elementType)"): ?"integer"')


def infer_schema(*, sample: int = _SAMPLE, **options: str) -> StructType:
    """Return a schema for option `documentSchema`, as `infer_schema(…).json()`.

    It is the schema of a typed table with these documents, with BIGINT for INT: documents that are
    not in the sample may have larger numbers.

    Args:
        sample: how many documents are read.
        options: of the source, for one collection.

    Raises OptionError without exactly one collection, or if it is empty; StreamError if the router
    cannot be reached.
    """
    parsed = parse_options(options)
    database, collections = parsed.scope.database, parsed.scope.collections
    if database is None or len(collections) != 1:
        raise OptionError("a schema is that of one collection: give 'database' and 'collection'")
    with closing(RouterClient(parsed)) as client:
        client.require_reachable()
        collection = client.mongo[database][collections[0]]
        schema = schema_of(collection.aggregate([{"$sample": {"size": sample}}]))
    if not schema.fields:
        raise OptionError(f"{database}.{collections[0]} has no documents to infer a schema from")
    return StructType.fromJson(json.loads(_INT.sub(r'\1:"long"', schema.json())))
