"""The schema of the rows that the options request, and one of documents, inferred from a sample.

A start first checks its options and connects to the router, in a separate process. It imports
this module and neither pyarrow nor the planners, so that an unreachable router is reported sooner.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace

from pyspark.sql.types import StringType, StructType

from spark_sink.errors import OptionError
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.rows.inferred_schema import schema_of
from spark_sink.rows.row_schema import ddl_of, is_json_schema, row_schema, schema_from_json
from spark_sink.rows.typed_documents import TYPED_COLUMNS, TypedDocuments
from spark_sink.stream.router_client import RouterClient

_SAMPLE = 1000
_INT = re.compile(r'("(?:type|elementType)"): ?"integer"')


def typed_documents(options: StreamOptions) -> TypedDocuments | None:
    """Return the maker of structs of documents; None if the options request no structs.

    Raises OptionError for an invalid schema.
    """
    if options.document_type is None:
        return None
    try:
        return TypedDocuments(options.document_type, rescues_unknown=not options.ignores_unknown)
    except ValueError as error:
        raise OptionError(f"option 'documentSchema': {error}") from None


def schema_for(options: StreamOptions) -> StructType:
    """Return the schema of the rows that the options request. Raises OptionError."""
    typed_documents(options)
    return row_schema(raw_documents=options.raw_documents, document_type=options.document_type)


def declared_schema(options: StreamOptions) -> StructType | str:
    """Return the schema: DDL if that of documents is DDL, which only Spark's JVM can parse.

    Raises OptionError for an invalid schema.
    """
    given = options.document_schema
    if given is None:
        return schema_for(options)
    if is_json_schema(given):
        return schema_for(replace(options, document_type=schema_from_json(given)))
    anything = StructType().add("any", StringType())
    rows = schema_for(replace(options, document_type=anything))
    columns = []
    for field in rows.fields:
        kind = f"STRUCT<{given}>" if field.name in TYPED_COLUMNS else ddl_of(field.dataType)
        columns.append(f"`{field.name}` {kind}{'' if field.nullable else ' NOT NULL'}")
    return ", ".join(columns)


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
