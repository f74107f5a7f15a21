"""What an event has to look up, and how the document gets into it. Raw BSON in and out."""

import re
from struct import Struct
from typing import Final, NamedTuple

from router.change_stream.resume_token import ResumeToken
from shard_client.bson_slices import DOCUMENT, STRING, TIMESTAMP, find, iter_elements, string_value
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, ProtocolError

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024 + 16 * 1024
"""The largest document that a server builds (docs/protocol.md, section 1)."""

_UUID_IN_TOKEN: Final = re.compile(
    rb"82[0-9A-F]{16}2B0([24])2C0100(?:29|2B..|2C.{4}|2D.{6})6E5A1004([0-9A-F]{32})"
)
_int32 = Struct("<i")
_timestamp = Struct("<II").unpack_from
_FIELD: Final = b"fullDocument\0"
_NULL: Final = b"\x0a" + _FIELD


class Wanted(NamedTuple):
    """The document that belongs to one update event.

    ``document_key`` is the event's raw ``documentKey``, ``uuid`` the collection's in 16 bytes,
    ``time`` the event's cluster time as (seconds, increment), ``token_version`` its token's, and
    ``place`` the offset in the event where ``fullDocument`` goes.
    """

    database: str
    collection: str
    document_key: bytes
    uuid: bytes
    time: tuple[int, int]
    token_version: int
    place: int


def wanted(event: bytes) -> Wanted | None:
    """Return what ``event`` has to look up; None if it is no update.

    Raises CommandError as a server does when an update has no namespace or document key.
    """
    token = namespace = key = time = None
    try:
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
        database = find(event, b"db", namespace.start, namespace.end)
        collection = find(event, b"coll", namespace.start, namespace.end)
        if database is None or collection is None:
            raise ProtocolError("its ns has no db or no coll")
        version, uuid = _version_and_uuid(string_value(event, token))
        return Wanted(
            string_value(event, database).decode(),
            string_value(event, collection).decode(),
            key,
            uuid,
            time,
            version,
            namespace.start - len(b"\x03ns\0"),
        )
    except (ProtocolError, UnicodeDecodeError) as error:
        raise CommandError(
            40578, f"failed to look up post image after change: the event is malformed: {error}"
        ) from error


def with_document(event: bytes, place: int, document: bytes | None) -> bytes:
    """Return ``event`` with the looked-up document, or null, as its ``fullDocument``.

    The field goes where servers have it, before ``ns``. Raises CommandError 10334 when the event
    gets larger than a document may be.
    """
    field = _NULL if document is None else b"\x03" + _FIELD + document
    size = len(event) + len(field)
    if size > MAX_EVENT_BYTES:
        token = find(event, b"_id")
        data = find(event, b"_data", token.start, token.end) if token is not None else None
        shown = string_value(event, data).decode(errors="replace") if data is not None else ""
        raise CommandError(
            ErrorCode.BSONObjectTooLarge,
            f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
            f'{MAX_EVENT_BYTES}(16MB) First element: _id: {{ _data: "{shown}" }}',
        )
    return b"".join((_int32.pack(size), event[4:place], field, event[place:]))


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
