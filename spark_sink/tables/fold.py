"""Folds the rows of a table and the events after them into the table's next rows.

`KeyedRows` gives each row and each event its place. Sorted by place and token, they are versions of
each document, which `Fold` applies in order. The token of a row guards it: an event at or below
that token was applied already, or a snapshot has read its result. So applying events again changes
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import bson
import pyarrow as pa
import pyarrow.compute as pc
from bson.errors import BSONError
from pyspark.sql.types import StructType

from shard_client.bson.resume_token import cluster_time_of
from shard_client.bson.values import DOCUMENT
from spark_sink.events.apply_update import updated
from spark_sink.events.positions import ABOVE_ALL_TOKENS
from spark_sink.events.slices import CODEC, Slice, fields_of
from spark_sink.rows.arrow_types import arrow_schema, batch_of, filtered, rows_in
from spark_sink.rows.layouts import Indexes, Values, all_layouts_of, in_order
from spark_sink.rows.row_schema import columns
from spark_sink.snapshot.selections import Namespace
from spark_sink.snapshot.unread import CollectionTokens, token_in
from spark_sink.tables.keyed_rows import DELETED, DELETED_ROW, EVENT, INAPPLICABLE, problem_of
from spark_sink.tables.places import KEY_COLUMNS, names_in

TABLE = StructType(
    columns(
        "namespace string!, database string!, collection string!, key string!, documentKey string, "
        "fullDocument string!, document binary!, token string!, clusterTime timestamp!"
    )
)
"""A row of a current table: a document as extended JSON (`fullDocument`) and as BSON (`document`),
its key in canonical extended JSON, and the token and time of the last event that is in it."""

BASE = ("database", "collection", "key", "token", "documentKey", "document")
"""The columns from which the next version of a row is made."""
FOLDED = StructType(
    columns(
        "place string, token string, documentKey string, document binary, problem string, "
        f"{DELETED} boolean"
    )
)
"""The next row at a place, or an event that cannot be applied: `problem` says why, and `document`
is its BSON."""

_ROWS_PER_BATCH = 5_000
_BYTES_PER_BATCH = 8 * 1024 * 1024


COMMIT_SECONDS = 60
"""Seconds of cluster time within which several shards commit one transaction."""


def _at(document: Any, path: str) -> Any:
    """Return the value at the dotted path of a shard key; None if there is none."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _has(document: Mapping[str, Any], path: str) -> bool:
    """Return whether a document has a field, which may be null, at such a path."""
    parents, _, name = path.rpartition(".")
    parent = _at(document, parents) if parents else document
    return isinstance(parent, Mapping) and name in parent


class _Content(Enum):
    """What is known of the document of a key."""

    NONE = "there is no document"
    WHOLE = "the document"
    DELETED = "the document before its delete, in a table that keeps it"
    UNKNOWN = "an update has changed a document that is not known"
    UNFIT = "an update does not fit the document"
    INAPPLICABLE = "the event belongs to no document"


@dataclass
class _NextRow:
    """What becomes of one place: made of its row, and of the events after it, in order."""

    place: str
    keeps_deleted: bool = False
    token: str = ""
    document_key: str | None = None
    content: _Content = _Content.NONE
    document: bytes | None = None
    """The document, if `content` is WHOLE; the last one known, if that is DELETED."""
    event: bytes = b""
    misfit: str = ""
    """Why the update is UNFIT."""

    def apply_row(
        self, token: str, document_key: str | None, document: bytes, *, deleted: bool = False
    ) -> None:
        """Apply a row of the table, which comes before the events above it."""
        if token > self.token:
            self.token, self.document_key, self.document = token, document_key, document
            self.content = _Content.DELETED if deleted else _Content.WHOLE

    def apply_event(self, token: str, document_key: str | None, event: bytes) -> None:
        """Apply the next event in the order of the stream."""
        # The end of a snapshot that marks a row may have the token of a document that follows.
        is_marked = self.content is _Content.DELETED
        if token < self.token or (token == self.token and not is_marked):
            return
        fields = fields_of(event)
        operation = fields[b"operationType"].text()
        if operation == "delete":
            is_other = document_key not in (None, self.document_key)  # repairs have no document key
            if is_other and self._has_moved(token, fields):
                return
            if self.keeps_deleted:
                self.content = _Content.DELETED
            else:
                self.content, self.document = _Content.NONE, None
        else:
            if is_marked:
                self.document = None
            self._change(fields)
            self.document_key = document_key
        self.token, self.event = token, event

    def _has_moved(self, token: str, fields: dict[bytes, Slice]) -> bool:
        """Return whether the shard key of the delete differs from that of the table's document.

        A new value of the shard key moves a document: a transaction deletes it on one shard and
        inserts it on another, and the insert may have the smaller cluster time. The document's own
        fields are compared with the deleted key. A field that only one of them has counts only
        after an insert of about the same time: the source may leave out fields, and a collection
        may get a shard key with other fields.
        """
        if self.document is None:
            return False
        document, key = (
            bson.decode(data, CODEC) for data in (self.document, fields[b"documentKey"].value)
        )
        if any(
            _has(document, name) and bson.encode({"": _at(document, name)}) != bson.encode({"": v})
            for name, v in key.items()
        ):
            return True
        age = cluster_time_of(token).time - cluster_time_of(self.token).time
        if self.document_key is None or b"txnNumber" not in fields or age > COMMIT_SECONDS:
            return False
        others = key.keys() ^ json.loads(self.document_key).keys()
        return any((name in key) != _has(document, name) for name in others)

    def _change(self, fields: dict[bytes, Slice]) -> None:
        """Apply an event after which there is a document."""
        full = fields.get(b"fullDocument")
        if full is not None and full.kind == DOCUMENT:
            self.content, self.document = _Content.WHOLE, full.value
            return
        description, before = fields.get(b"updateDescription"), self.document
        self.document = None
        if before is None or description is None:
            if self.content is not _Content.UNFIT:
                self.content = _Content.UNKNOWN
            return
        try:
            self.document = updated(before, description.value)
        except (ValueError, TypeError, BSONError) as error:
            self.content, self.misfit = _Content.UNFIT, str(error)

    def problem(self, complete_from: str) -> str | None:
        """Return why the last event cannot be applied; None if it can.

        An update below `complete_from` may change a document that was deleted before the snapshot
        read it. In an unread collection no update fails, as a snapshot will bring the document.
        """
        match self.content:
            case _Content.INAPPLICABLE:
                return problem_of(fields_of(self.event).get(b"documentKey"))
            case _Content.UNFIT if complete_from != ABOVE_ALL_TOKENS:
                database, collection, key = self.place.split("\0")
                return (
                    f"an update of {database}.{collection} does not fit the document "
                    "that the table has: read post-images with fullDocument=required, or read the "
                    f"collection again with snapshotMode=always (key {key}) ({self.misfit})"
                )
            case _Content.UNKNOWN if self.token >= complete_from:
                database, collection, key = self.place.split("\0")
                return (
                    f"an update of {database}.{collection} changes a document that the "
                    "table does not have: let the query begin with snapshotMode=initial, or read "
                    f"post-images with fullDocument=required (key {key})"
                )
        return None


@dataclass
class Fold:
    """Makes rows of FOLDED from rows of KEYED, sorted by place and token.

    Args:
        complete_from: the token from which on the table has every document that an update changes.
        complete_in: later such tokens; ABOVE_ALL_TOKENS for an unread collection.
        keeps_deleted: whether a deleted document leaves its row, with DELETED.
        renamed: the collections that got their names in the batch, and the renames' tokens.
    """

    complete_from: str = ""
    complete_in: CollectionTokens = field(default_factory=dict)
    keeps_deleted: bool = False
    renamed: Mapping[Namespace, str] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Return the next rows of the table, and the events that cannot be applied."""
        rows: list[tuple[Any, ...]] = []
        size, later = 0, cache(lambda names: token_in(self.complete_in, *names.split("\0")))
        for row in _next_rows(batches, self.keeps_deleted):
            in_collection = later(row.place.rpartition("\0")[0])
            problem = row.problem(max(self.complete_from, in_collection))
            document = row.document if problem is None else row.event
            if document is None:
                continue
            is_deleted = row.content is _Content.DELETED
            version = (row.place, row.token, row.document_key, document, problem, is_deleted)
            rows.append(version)
            size += len(document)
            if len(rows) >= _ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
                yield pa.Table.from_batches([batch_of(rows, _FOLDED)])
                rows, size = [], 0
        yield pa.Table.from_batches([batch_of(rows, _FOLDED)])

    def of(self, keyed: pa.Table) -> pa.Table:
        """Return the same of a table; most events need no row of Python (`whole_documents`)."""
        whole, others = whole_documents(keyed)
        return pa.concat_tables([whole, *self(others.to_batches())]) if others.num_rows else whole

    def moved(self, rows: pa.Table) -> pa.Table:
        """Return rows of FOLDED: those that a rename has moved have its token.

        So the end of a snapshot that began before the rename, and knows the collection by its new
        name only, does not remove them.
        """
        if not self.renamed:
            return rows
        names = pa.array([*map("\0".join, self.renamed)])
        database, collection, _ = names_in(rows["place"].combine_chunks())
        of_rows = pc.binary_join_element_wise(database, collection, "\0")
        which = pc.index_in(of_rows, value_set=names)
        # The token of a deleted document stays that of its delete.
        which = pc.if_else(rows[DELETED], pa.scalar(None, pa.int32()), which)
        tokens = pa.array([*self.renamed.values()]).take(which)
        tokens = pc.max_element_wise(rows["token"], tokens)
        return rows.set_column(rows.schema.names.index("token"), "token", tokens)


def _next_rows(batches: Iterable[pa.RecordBatch], keeps_deleted: bool) -> Iterator[_NextRow]:
    rows = chain.from_iterable(map(rows_in, batches))
    for place, versions in groupby(rows, itemgetter(0)):
        row = _NextRow(place, keeps_deleted)
        for _, token, document_key, kind, payload in versions:
            if kind == INAPPLICABLE:
                yield _NextRow(place, token=token, content=_Content.INAPPLICABLE, event=payload)
            elif kind == EVENT:
                row.apply_event(token, document_key, payload)
            else:
                row.apply_row(token, document_key, payload, deleted=kind == DELETED_ROW)
        yield row


def whole_documents(keyed: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return rows for keys whose last event has the whole document, and the other keyed rows.

    What came before such an event has no effect, so most events need no `Fold`. `keyed` has rows
    of KEYED, sorted by place, token and kind. The first result has the columns of FOLDED, and its
    rows are in the order of places.
    """
    chosen, documents = _whole_at_last(keyed, follows=False)
    known = chosen.select(_FOLDED.names[:3]).columns
    rest = pa.nulls(len(documents), pa.string()), pa.repeat(pa.scalar(False), len(documents))
    folded = pa.table([*known, documents, *rest], schema=_FOLDED)
    if chosen.num_rows == keyed.num_rows:
        return folded, keyed.slice(0, 0)
    return folded, keyed.filter(pc.invert(pc.is_in(keyed["place"], value_set=chosen["place"])))


def without_superseded(keyed: pa.Table) -> pa.Table:
    """Return rows without those before the last event of their key, if it has the whole document.

    `keyed` is as for `whole_documents`. Many changes of one document then cost little memory.
    """
    last, _ = _whole_at_last(keyed, follows=True)
    if not last.num_rows:
        return keyed
    places = keyed["place"].combine_chunks()
    is_last = pa.concat_arrays([pc.not_equal(places[1:], places[:-1]), pa.array([True])])
    superseded = pc.and_not(pc.is_in(places, value_set=last["place"]), is_last)
    return keyed.filter(pc.invert(superseded))


def _whole_at_last(keyed: pa.Table, *, follows: bool) -> tuple[pa.Table, pa.Array]:
    """Return the rows that are the last of their key and have the whole document; and these.

    With `follows`, only those that come after another row of their key.
    """
    if not keyed.num_rows:
        return keyed, pa.array([], pa.binary())
    places, tokens, kinds = (keyed[c].combine_chunks() for c in ("place", "token", "kind"))
    begins = pc.not_equal(places[1:], places[:-1])
    is_last = pa.concat_arrays([begins, pa.array([True])])
    # Not: an event with the token of the row before it, which was applied already.
    rises = pc.greater(tokens[1:], tokens[:-1])
    rises = pc.and_not(rises, begins) if follows else pc.or_(rises, begins)
    is_applied = pa.concat_arrays([pa.array([not follows]), rises])
    is_event = pc.equal(kinds, EVENT)
    chosen = filtered(keyed, pc.and_(is_event, pc.and_(is_last, is_applied))).combine_chunks()
    if not chosen.num_rows:
        return chosen, pa.array([], pa.binary())
    documents = _documents_in(chosen["payload"].chunk(0))
    is_whole = pc.is_valid(documents)
    return filtered(chosen, is_whole), filtered(documents, is_whole)


def _documents_in(events: pa.Array) -> pa.Array:
    """Return the BSON of the whole documents in events; null for deletes and without a document.

    Raises InvalidBSON.
    """
    parts: list[tuple[Indexes, pa.Array]] = []
    for layout in all_layouts_of(Values.of(events)):
        full, kind = (layout.fields.get(name) for name in _OF_DOCUMENT)
        if full is None or full.kind != DOCUMENT or kind is None:
            parts.append((layout.rows, pa.nulls(len(layout.rows), pa.binary())))
            continue
        documents = full.column()
        kinds, codes = kind.distinct()
        if any(kind.value == _DELETE for kind in kinds):
            living = pa.array([kind.value != _DELETE for kind in kinds]).take(pa.array(codes))
            documents = pc.if_else(living, documents, None)
        parts.append((layout.rows, documents))
    return in_order(parts)


def with_key_columns(rows: pa.Table) -> pa.Table:
    """Return rows of FOLDED with the columns of TABLE that follow from their places and tokens."""
    seconds = pc.utf8_slice_codeunits(rows["token"].combine_chunks(), 2, 10).dictionary_encode()
    known = pa.array([int(digits, 16) for digits in seconds.dictionary.to_pylist()], pa.int64())
    times = pc.multiply(known.take(seconds.indices), 1_000_000)
    names = names_in(rows["place"].combine_chunks())
    namespace = pc.binary_join_element_wise(*names[:2], ".")
    for name, column in zip(_DERIVED, (namespace, *names, times), strict=True):
        rows = rows.append_column(name, column)
    return rows


_FOLDED = arrow_schema(FOLDED)
_DERIVED = ("namespace", *KEY_COLUMNS, "clusterTime")
_OF_DOCUMENT = (b"fullDocument", b"operationType")
_DELETE = b"\x07\0\0\0delete\0"
