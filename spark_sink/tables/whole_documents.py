"""Rows of a current table whose last event contains the whole document, made many at once.

What came before such an event has no effect, so that most events need no `Fold`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from shard_client.bson.values import DOCUMENT
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.field_values import field_values
from spark_sink.tables.fold import DELETED, FOLDED
from spark_sink.tables.prepare import EVENT

_FOLDED = arrow_schema(FOLDED)
_DELETE = b"\x07\0\0\0delete\0"


def whole_documents(prepared: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of keys whose last event contains the document, and what else is prepared.

    `prepared` has the columns of PREPARED and `place`, sorted by place, token and kind. The first
    result has the columns of FOLDED, and its rows are in the order of places.
    """
    if not prepared.num_rows:
        return _FOLDED.empty_table(), prepared
    prepared = prepared.combine_chunks()
    places, tokens = (prepared[name].chunk(0) for name in ("place", "token"))
    border = pa.array([True])
    changes = pc.not_equal(places[1:], places[:-1])
    rises = pc.or_(changes, pc.greater(tokens[1:], tokens[:-1]))
    is_last = pa.concat_arrays([changes, border])
    is_applied = pa.concat_arrays([border, rises])  # an event at the token before it is not
    is_event = pc.equal(prepared["kind"].chunk(0), EVENT)
    chosen = prepared.filter(pc.and_(is_event, pc.and_(is_last, is_applied))).combine_chunks()
    if not chosen.num_rows:
        return _FOLDED.empty_table(), prepared
    names = (b"operationType", b"fullDocument")
    kinds, fields = field_values(chosen["payload"].chunk(0), names)
    documents = [
        field.value
        if field is not None and field.kind == DOCUMENT and kind is not None
        and kind.value != _DELETE
        else None
        for kind, field in zip(kinds, fields, strict=True)
    ]  # fmt: skip
    column = pa.array(documents, pa.binary())
    if column.null_count:
        chosen = chosen.filter(pc.is_valid(column))
        column = pc.drop_null(column)
    found = _rows(chosen, column)
    if chosen.num_rows == prepared.num_rows:
        return found, prepared.slice(0, 0)
    others = pc.invert(pc.is_in(places, value_set=chosen["place"]))
    return found, prepared.filter(others)


def _rows(events: pa.Table, documents: pa.Array) -> pa.Table:
    seconds = (int(token[2:10], 16) for token in events["token"].to_pylist())
    columns = {
        "namespace": pc.binary_join_element_wise(events["database"], events["collection"], "."),
        **{name: events[name] for name in ("database", "collection", "key", "documentKey")},
        "document": documents,
        "token": events["token"],
        "clusterTime": pa.array([each * 1_000_000 for each in seconds], pa.int64()),
        "problem": pa.nulls(events.num_rows, pa.string()),
        DELETED: pa.repeat(pa.scalar(False), events.num_rows),
    }
    arrays = [columns[field.name] for field in _FOLDED]
    return pa.table(arrays, _FOLDED.names).cast(_FOLDED)
