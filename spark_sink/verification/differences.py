"""How rows differ: documents by their fields, columns from their documents, rows from a checksum.

Executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from shard_client.bson.values import ARRAY, DOCUMENT
from spark_sink.events.slices import Slice, elements_of
from spark_sink.options.scope import Scope
from spark_sink.rows.arrow_types import arrow_schema, batch_of, rows_in
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.rows.row_schema import columns
from spark_sink.snapshot.unread import CollectionTokens, token_in
from spark_sink.tables.executors import MadeRows
from spark_sink.tables.places import KEY_COLUMNS
from spark_sink.tables.table_form import FormedRows, TableForm

DOUBLED = "doubled"
"""The difference of a document, or an event, that has several rows."""
DIFFERENCES = StructType(
    [
        *columns("namespace string, key string, difference string"),
        StructField("fields", ArrayType(StringType())),
        *columns("token string"),
    ]
)
"""How a document differs, and in which fields; `token` is that of the table's row."""
_DIFFERENCES = arrow_schema(DIFFERENCES)


def document_differences(
    scope: Scope, unread: CollectionTokens, batches: Iterable[pa.RecordBatch]
) -> MadeRows:
    """Return how the BSON in `table` differs from that in `collection`: for `mapInArrow`.

    Null stands for a missing document. Collections outside of the scope, and those that the table
    must read again, are not compared. A key with bytes that are no UTF-8 finds no document: it is
    neither missing nor extra.
    """
    for batch in batches:
        rows = []
        for namespace, key, token, table, collection in zip(
            *(batch[n].to_pylist() for n in ("namespace", "key", "token", "table", "collection")),
            strict=True,
        ):
            database, _, name = namespace.partition(".")
            is_unknown = "\\ufffd" in key and None in (table, collection)
            is_unread = bool(token_in(unread, database, name))
            if not scope.accepts(database, name) or is_unread or is_unknown:
                continue
            kind, fields = "missing" if table is None else "extra", list[str]()
            if table is not None and collection is not None:
                kind, fields = "different", differing_fields(table, collection)
            if fields or kind != "different":
                rows.append((namespace, key, kind, fields, token))
        yield batch_of(rows, _DIFFERENCES)


def differing_fields(table: bytes, collection: bytes) -> list[str]:
    """Return the names of the fields that differ. The order of fields does not count."""
    left, right = _by_name(table), _by_name(collection)
    differing = {name for name in left | right if left.get(name) != right.get(name)}
    return sorted(name.decode(errors="replace") for name in differing)


def _by_name(document: bytes) -> dict[bytes, list[Any]]:
    """Return the values of each name in a document, in their order."""
    values: dict[bytes, list[Any]] = {}
    for name, value in elements_of(document):
        values.setdefault(name, []).append(_comparable(value))
    return values


def _comparable(value: Slice) -> Any:
    """Return a value for a comparison by types, but not by the order of fields."""
    if value.kind == DOCUMENT:
        return _by_name(value.value)
    if value.kind == ARRAY:
        return [_comparable(element) for _, element in elements_of(value.value)]
    return value


def column_differences(form: TableForm, batches: Iterable[pa.RecordBatch]) -> MadeRows:
    """Return rows whose columns do not agree with their BSON, as DIFFERENCES: a task.

    The difference is "columns", and the fields are the names of these columns.
    """
    formed = FormedRows(form)
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        stored, expected = (formed.from_file(rows, again=again) for again in (False, True))
        names = [name for name in expected.column_names if stored[name] != expected[name]]
        if not names:
            continue
        keys = batch.select([*map(form.column, (*KEY_COLUMNS, "token"))])
        sides = (table.select(names).to_pylist() for table in (stored, expected))
        found = []
        for (database, name, key, token), left, right in zip(rows_in(keys), *sides, strict=True):
            fields = [each for each in names if str(_bare(left[each])) != str(_bare(right[each]))]
            if fields:
                found.append((f"{database}.{name}", key, "columns", fields, token))
        yield batch_of(found, _DIFFERENCES)


def _bare(value: Any) -> Any:
    """Return a value of a column without empty arrays and documents.

    Rows that are older than the column have null instead.
    """
    if isinstance(value, dict):
        bare = {name: _bare(item) for name, item in value.items()}
        return {name: item for name, item in bare.items() if item is not None} or None
    return [_bare(item) for item in value] or None if isinstance(value, list) else value


def rows_checksum(rows: Iterable[pa.RecordBatch]) -> Checksum:
    """Return the checksum of rows: a task."""
    return sum(map(Checksum.of, rows), NO_ROWS)
