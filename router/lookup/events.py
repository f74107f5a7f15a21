"""The lookup that an event needs, and insertion of the document. Raw BSON in and out."""

import re
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from router.lookup.keys import USUAL_KEY, DocumentKey
from shard_client.bson.resume_token import ResumeToken
from shard_client.bson.values import DOCUMENT, STRING, TIMESTAMP
from shard_client.errors import CommandError, ErrorCode, ProtocolError
from shard_client.remote_cursor.cursor_reply import token_of
from shard_client.wire.bson_slices import document_end, find, iter_elements, string_value
from shard_client.wire.documents import decode

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024 + 16 * 1024
"""The largest document that a server builds (docs/protocol.md#wire-protocol)."""

_FRONT: Final = (
    rb"....(?:\x12txnNumber\0.{8}\x03lsid\0.{4}\x05id\0\x10\0\0\0\x04.{16}"
    rb"(?:\x05uid\0\x20\0\0\0\0.{32})?\0)?"
    rb"\x03_id\0....\x02_data\0....([^\0]++)\0\0"
    rb"\x02operationType\0"
)
_UPDATE: Final = rb"\x07\0\0\0update\0"

_usual_update: Final = re.compile(
    _FRONT + _UPDATE + rb"\x11clusterTime\0(.{8})"
    rb"(?:\x05collectionUUID\0\x10\0\0\0\x04.{16})?"
    rb"(?:\x09wallTime\0.{8})?"
    rb"(\x03ns\0(....\x02db\0....[^\0]+\0\x02coll\0....[^\0]+\0\0))"
    rb"\x03documentKey\0(%b)?" % USUAL_KEY,
    re.DOTALL,
).match
"""The beginning of an update event as servers write it: one match finds the values needed."""

_usual_other: Final = re.compile(_FRONT + b"(?!" + _UPDATE + b")", re.DOTALL).match
"""The same of an event that is no update."""

_UUID_IN_TOKEN: Final = re.compile(
    rb"2B0([24])2C0100(?:29|2B..|2C.{4}|2D.{6})6E5A1004([0-9A-F]{32})"
)
_int32 = Struct("<i")
_FRONT_OF_TOKEN: Final = 18
_END_OF_UUID: Final = 76
"""A usual token names the collection between the cluster time, up to 18, and here at most."""
_DOCUMENT: Final = b"\x03fullDocument\0"
_NULL: Final = b"\x0afullDocument\0"


class SourceCollection(NamedTuple):
    """The collection of an event: its names, its UUID in 16 bytes, the version of the token."""

    database: str
    collection: str
    uuid: bytes
    token_version: int


class Lookup(NamedTuple):
    """The document that belongs to one update event.

    ``time`` is the event's raw cluster time, and ``place`` the offset in the event at which
    ``fullDocument`` is inserted.
    """

    source: SourceCollection
    key: DocumentKey
    time: bytes
    place: int


def has_updates(events: Iterable[bytes]) -> bool:
    """Return whether one of the events may be an update; False is certain."""
    return not all(map(_usual_other, events))


def lookup_of(event: bytes) -> Lookup | None:
    """Return the lookup that ``event`` needs, or None if it is not an update.

    Raises CommandError as a server does when an update has no namespace or document key.
    """
    usual = _usual_update(event)
    try:
        if usual is not None:
            data, time, _, namespace, raw, other, identifier = usual.groups()
            if raw is not None and len(raw) == int.from_bytes(raw[:4], "little"):
                key = DocumentKey(raw, identifier, () if other is None else (other,))
            else:
                start = usual.end(3) + len(b"\x03documentKey\0")
                key = DocumentKey.of(event[start : document_end(event, start, len(event))])
            return Lookup(_source(namespace, data), key, time, usual.start(3))
        return None if _usual_other(event) else _lookup_by_scanning(event)
    except (ProtocolError, ValueError) as error:
        raise CommandError(
            40578, f"failed to look up post image after change: the event is malformed: {error}"
        ) from error


def _lookup_by_scanning(event: bytes) -> Lookup | None:
    token = namespace = key = time = None
    for element in iter_elements(event):
        kind, name, start, end = element
        if name == b"operationType":
            if kind != STRING or string_value(event, element) != b"update":
                return None
        elif name == b"_id" and kind == DOCUMENT:
            token = find(event, b"_data", start, end)
        elif name == b"ns" and kind == DOCUMENT:
            namespace = element
        elif name == b"documentKey" and kind == DOCUMENT:
            key = DocumentKey.of(event[start:end])
        elif name == b"clusterTime" and kind == TIMESTAMP:
            time = event[start:end]
    if token is None or namespace is None or key is None or time is None:
        raise ProtocolError("it has no _id, ns, documentKey or clusterTime")
    source = _source(event[namespace.start : namespace.end], string_value(event, token))
    return Lookup(source, key, time, namespace.start - len(b"\x03ns\0"))


def _source(namespace: bytes, data: bytes) -> SourceCollection:
    """Return the collection of an event from its raw ``ns`` and the data of its token."""
    usual = _usual_source(namespace, data[_FRONT_OF_TOKEN:_END_OF_UUID])
    if usual is not None:
        return usual
    token = ResumeToken.decode(data.decode("ascii"))
    if token.uuid is None:
        raise ProtocolError("its token has no UUID")
    return SourceCollection(*_names(namespace), token.uuid.bytes, token.version)


@lru_cache(maxsize=256)
def _usual_source(namespace: bytes, part: bytes) -> SourceCollection | None:
    usual = _UUID_IN_TOKEN.match(part)
    if usual is None:
        return None
    version, uuid = usual.groups()
    return SourceCollection(
        *_names(namespace), bytes.fromhex(uuid.decode("ascii")), int(version) // 2
    )


def _names(namespace: bytes) -> tuple[str, str]:
    """Return database and collection of a raw ``ns``."""
    database, collection = find(namespace, b"db"), find(namespace, b"coll")
    if database is None or collection is None:
        raise ProtocolError("its ns has no db or no coll")
    return (
        string_value(namespace, database).decode(),
        string_value(namespace, collection).decode(),
    )


def with_document(
    event: bytes, place: int, document: bytes | None, *, any_size: bool = False
) -> bytes:
    """Return ``event`` with the looked-up document, or null, as its ``fullDocument``.

    The field comes before ``ns``, as on servers. Raises CommandError 10334 if the event becomes
    larger than the maximum document size, unless ``any_size`` is set.
    """
    name, value = (_NULL, b"") if document is None else (_DOCUMENT, document)
    size = len(event) + len(name) + len(value)
    if size > MAX_EVENT_BYTES and not any_size:
        raise too_large(event, size)
    return b"".join((_int32.pack(size), event[4:place], name, value, event[place:]))


def too_large(event: bytes, size: int) -> CommandError:
    """Return the error for an event that has become a document of ``size`` bytes."""
    token = decode(token_of(event))
    shown = [f'_data: "{token["_data"]}"']
    if "_typeBits" in token:
        shown.append(f"_typeBits: BinData(0, {token['_typeBits'].hex().upper()})")
    return CommandError(
        ErrorCode.BSONObjectTooLarge,
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
        f"{MAX_EVENT_BYTES}(16MB) First element: _id: {{ {', '.join(shown)} }}",
    )
