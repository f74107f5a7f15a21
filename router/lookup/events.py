"""The lookup that an event needs, and insertion of the document. Raw BSON in and out."""

import re
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from router.tokens.resume_token import ResumeToken, event_key
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, ProtocolError
from shard_client.wire.bson_slices import (
    DOCUMENT,
    STRING,
    TIMESTAMP,
    document_end,
    find,
    iter_elements,
    string_value,
)

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024 + 16 * 1024
"""The largest document that a server builds (docs/protocol.md#wire-protocol)."""

_FRONT: Final = (
    rb"....(?:\x12txnNumber\0.{8}\x03lsid\0.{4}\x05id\0\x10\0\0\0\x04.{16}"
    rb"(?:\x05uid\0\x20\0\0\0\0.{32})?\0)?"
    rb"\x03_id\0....\x02_data\0....([^\0]++)\0\0"
    rb"\x02operationType\0"
)
_UPDATE: Final = rb"\x07\0\0\0update\0"

_USUAL_UPDATE: Final = re.compile(
    _FRONT + _UPDATE + rb"\x11clusterTime\0(.{8})"
    rb"(?:\x05collectionUUID\0\x10\0\0\0\x04.{16})?"
    rb"(?:\x09wallTime\0.{8})?"
    rb"(\x03ns\0(....\x02db\0....[^\0]+\0\x02coll\0....[^\0]+\0\0))"
    rb"\x03documentKey\0",
    re.DOTALL,
)
"""The beginning of an update event as servers write it: one match finds the values needed."""

_usual_other: Final = re.compile(_FRONT + b"(?!" + _UPDATE + b")", re.DOTALL).match
"""The same of an event that is no update."""

_UUID_IN_TOKEN: Final = re.compile(
    rb"82[0-9A-F]{16}2B0([24])2C0100(?:29|2B..|2C.{4}|2D.{6})6E5A1004([0-9A-F]{32})"
)
_int32 = Struct("<i")
_timestamp = Struct("<II").unpack_from
_FIELD: Final = b"fullDocument\0"
_NULL: Final = b"\x0a" + _FIELD


class Wanted(NamedTuple):
    """The document that belongs to one update event.

    ``document_key`` is the event's raw ``documentKey``, ``uuid`` the collection's UUID in 16 bytes,
    ``time`` the event's cluster time as (seconds, increment), ``token_version`` the version of its
    token, and ``place`` the offset in the event at which ``fullDocument`` is inserted.
    """

    database: str
    collection: str
    document_key: bytes
    uuid: bytes
    time: tuple[int, int]
    token_version: int
    place: int


def has_updates(events: Iterable[bytes]) -> bool:
    """Return whether one of the events may be an update; False is certain."""
    return not all(map(_usual_other, events))


def wanted(event: bytes) -> Wanted | None:
    """Return the lookup that ``event`` needs, or None if it is not an update.

    Raises CommandError as a server does when an update has no namespace or document key.
    """
    usual = _USUAL_UPDATE.match(event)
    try:
        if usual is not None:
            data, packed, _, raw_namespace = usual.groups()
            start = usual.end()
            increment, seconds = _timestamp(packed)
            database, collection = _names(raw_namespace)
            version, uuid = _version_and_uuid(data)
            key = event[start : document_end(event, start, len(event))]
            time = (seconds, increment)
            return Wanted(database, collection, key, uuid, time, version, usual.start(3))
        return None if _usual_other(event) else _wanted_by_scanning(event)
    except (ProtocolError, UnicodeDecodeError) as error:
        raise CommandError(
            40578, f"failed to look up post image after change: the event is malformed: {error}"
        ) from error


def _wanted_by_scanning(event: bytes) -> Wanted | None:
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
            key = event[start:end]
        elif name == b"clusterTime" and kind == TIMESTAMP:
            increment, seconds = _timestamp(event, start)
            time = (seconds, increment)
    if token is None or namespace is None or key is None or time is None:
        raise ProtocolError("it has no _id, ns, documentKey or clusterTime")
    database, collection = _names(event[namespace.start : namespace.end])
    version, uuid = _version_and_uuid(string_value(event, token))
    place = namespace.start - len(b"\x03ns\0")
    return Wanted(database, collection, key, uuid, time, version, place)


@lru_cache(maxsize=256)
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
    field = _NULL if document is None else b"\x03" + _FIELD + document
    size = len(event) + len(field)
    if size > MAX_EVENT_BYTES and not any_size:
        raise too_large(event, size)
    return b"".join((_int32.pack(size), event[4:place], field, event[place:]))


def too_large(event: bytes, size: int) -> CommandError:
    """Return the error for an event that has become a document of ``size`` bytes."""
    data = event_key(event).decode(errors="replace")
    return CommandError(
        ErrorCode.BSONObjectTooLarge,
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
        f'{MAX_EVENT_BYTES}(16MB) First element: _id: {{ _data: "{data}" }}',
    )


def _version_and_uuid(data: bytes) -> tuple[int, bytes]:
    """Return a token's version and its collection's UUID in 16 bytes."""
    usual = _UUID_IN_TOKEN.match(data)
    if usual is not None:
        version, uuid = usual.groups()
        return int(version) // 2, bytes.fromhex(uuid.decode("ascii"))
    token = ResumeToken.decode(data.decode("ascii"))
    if token.uuid is None:
        raise ProtocolError("its token has no UUID")
    return token.version, token.uuid.bytes
