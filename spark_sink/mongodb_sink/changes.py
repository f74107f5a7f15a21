"""Changes of documents from rows, reduced to the writes that are necessary.

A change has the token of its event. A document stores the token of its last change, and a change
applies only to a document with a smaller token or without one. So a batch that is written again
changes nothing, and neither does a task that runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from itertools import zip_longest
from operator import attrgetter
from typing import Any

import bson
from bson.codec_options import CodecOptions, TypeRegistry
from bson.decimal128 import Decimal128

from shard_client.bson.values import DOCUMENT
from spark_sink.errors import StreamError
from spark_sink.events.header import SNAPSHOT_END, namespace_of
from spark_sink.events.slices import CODEC, NOTHING, document_of, fields_of, value_at
from spark_sink.options import parsers
from spark_sink.options.declared import canonical, option, option_names, parsed
from spark_sink.options.stream_options import required_uri

_OWNER = " of the sink"


def _field(text: str) -> str:
    if not text or "." in text or text.startswith("$") or text == "_id":
        raise ValueError(f"{text!r} cannot be a separate field: use a name without dots and $")
    return text


# The options that Spark passes in addition to those of the sink.
_SPARK_OPTIONS = ("checkpointlocation", "path", "queryname")


@dataclass(frozen=True)
class WriteOptions:
    """Where rows are written, and how.

    Args:
        uri: connection string of the router, or of a mongos.
        database, collection: of the documents; None for those of the row.
        keys: the fields that identify a document.
        token_field: the field of a document with the token of its last change.
        ignores_missing: whether an update of a missing document is skipped, and does not fail.
        ignores_others: whether drops and renames of collections are skipped, and do not fail.
    """

    uri: str = field(repr=False)
    database: str | None = option("database", parsers.database_name, None)
    collection: str | None = option("collection", parsers.some_text, None)
    keys: tuple[str, ...] = option("keys", parsers.names, ("_id",))
    token_field: str = option("tokenField", _field, "_token")
    ignores_missing: bool = option("missing", parsers.switch("fail", "ignore"), False)
    ignores_others: bool = option("otherEvents", parsers.switch("fail", "ignore"), False)


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options that a user gave, validated. Raises OptionError."""
    own = {name: text for name, text in options.items() if name.lower() not in _SPARK_OPTIONS}
    given = canonical(own, ("uri", "uriFile", *option_names(WriteOptions)), owner=_OWNER)
    uri = required_uri(given, "the sink requires one of the options 'uri' and 'uriFile'", _OWNER)
    return parsed(WriteOptions, given, _OWNER, uri=uri)


_WITH_DOCUMENT = ("insert", "replace", "read")
# These change no document; the other events of a collection do.
_WITHOUT_EFFECT = (
    SNAPSHOT_END, "heartbeat", "invalidate", "create", "createIndexes", "dropIndexes", "modify",
    "shardCollection", "refineCollectionShardKey", "reshardCollection",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A change of one document, which `namespace` and `key` identify.

    It has the BSON of the document after the change, or of an update description. A change without
    either deletes the document, if it has all of the key's values: a delete that `may_move` a
    document to another shard has those of the shard key. An update that `may_miss` its document is
    followed by such a delete.
    """

    namespace: tuple[str, str]
    key: Mapping[str, Any]
    token: Any
    document: bytes | None = None
    description: bytes | None = None
    may_move: bool = False
    may_miss: bool = False

    @property
    def is_update(self) -> bool:
        """Whether the change needs the document from before it."""
        return self.description is not None

    @property
    def deletes(self) -> bool:
        """Whether the change deletes the document."""
        return self.document is None and self.description is None


def change_of_event(row: Mapping[str, Any], options: WriteOptions) -> Change | None:
    """Return the change in a row with `token` and `event`; None if it changes no document.

    Raises StreamError for an event that the sink cannot apply.
    """
    event = fields_of(row["event"])
    kind = event.get(b"operationType", NOTHING).text()
    if kind in _WITHOUT_EFFECT:
        return None
    if kind not in (*_WITH_DOCUMENT, "update", "delete"):
        if options.ignores_others:
            return None
        raise StreamError(
            f"the sink does not apply events of the type {kind}: apply it yourself and filter such "
            "rows (where op is not null), or set otherEvents=ignore"
        )
    if b"documentKey" not in event or b"splitEvent" in event:
        raise StreamError(
            "the sink requires complete events: remove stages that drop fields from option "
            "'pipeline' of the source, and do not begin a query within a split event"
        )
    key = bson.decode(event[b"documentKey"].value, CODEC)
    full, description = event.get(b"fullDocument"), event.get(b"updateDescription")
    _, database, collection = namespace_of(event[b"ns"])
    namespace = (options.database or database or "", options.collection or collection or "")
    may_move = kind == "delete" and b"txnNumber" in event
    if not may_move:  # the document may lack other fields, which the source has left out
        key = {name: value for name, value in key.items() if name in options.keys} or key
    if kind == "delete":
        return Change(namespace, key, row["token"], may_move=may_move)
    if full is not None and full.kind == DOCUMENT:
        full_key = key_in(full.value, options.keys)
        return Change(namespace, full_key, row["token"], document=full.value)
    if description is None:
        raise StreamError(
            "an event has neither fullDocument nor updateDescription: remove stages that drop "
            "them from option 'pipeline' of the source"
        )
    return Change(namespace, key, row["token"], description=description.value)


def change_of_row(row: Mapping[str, Any], options: WriteOptions) -> Change:
    """Return the change in a row that is no event: its columns are the document, `op` "d" deletes.

    Raises StreamError.
    """
    document = {name: value for name, value in row.items() if name not in ("token", "op")}
    key = {name: document.get(name) for name in options.keys}
    if options.database is None or options.collection is None:
        raise StreamError(
            "the rows name no collection: set options 'database' and 'collection' of the sink"
        )
    namespace = (options.database, options.collection)
    if row["token"] is None or any(value is None for value in key.values()):
        raise StreamError(f"a row has no token, or no {' and '.join(options.keys)}: fill them in")
    if row.get("op") == "d":
        return Change(namespace, key, row["token"])
    return Change(namespace, key, row["token"], document=bson.encode(document, codec_options=CELLS))


def passes(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Return lists of changes to be written one after the other; each has a document once.

    Changes that a later one makes superfluous are left out. Only a delete in a transaction makes
    none so. A new shard key value moves a document: one shard deletes it, another one inserts it,
    and the insert may have the smaller token, even with an earlier cluster time. The document then
    lacks a value of the deleted key, and stays. A delete of another key than a later change has is
    not superfluous either.
    """
    by_document: dict[Any, list[Change]] = {}
    for change in sorted(changes, key=attrgetter("token")):
        identifier = bson.encode(
            {"_": change.key.get("_id", dict(change.key))}, codec_options=CELLS
        )
        earlier = by_document.setdefault((change.namespace, identifier), [])
        if earlier and not change.token > earlier[-1].token:
            continue
        if change.may_move:
            earlier[:] = [replace(change, may_miss=change.is_update) for change in earlier]
        elif not change.is_update:
            earlier[:] = [one for one in earlier if one.deletes and _is_other(one.key, change.key)]
        earlier.append(change)
    for group in zip_longest(*by_document.values()):
        yield [change for change in group if change is not None]


def _is_other(key: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two keys differ in a field that both have."""
    return any(name in other and other[name] != value for name, value in key.items())


def key_in(document: bytes, paths: Iterable[str]) -> dict[str, Any]:
    """Return the values at the dotted paths of a key in a document; None where it has none."""
    fields = fields_of(document)
    values = [(path, value_at(fields, path.encode())) for path in paths]
    present = ((path.encode(), value) for path, value in values if value is not None)
    return dict.fromkeys(paths) | bson.decode(document_of(present), CODEC)


def _encodable(value: Any) -> Any:
    """Return a value of Spark as one that BSON can encode."""
    if isinstance(value, Decimal):
        return Decimal128(value)
    if isinstance(value, date):
        return datetime.combine(value, time())
    return value


CELLS: CodecOptions[dict[str, Any]] = CodecOptions(
    type_registry=TypeRegistry(fallback_encoder=_encodable)
)
"""Encodes the values of rows."""
