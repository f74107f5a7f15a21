"""Cursor replies of change streams as slices: split without decoding.

An event's resume token is read at a fixed offset at the front of the event, after a check of the
bytes before it. Events with another layout are scanned. Source: docs/protocol.md#wire-protocol and
docs/protocol.md#cursor-replies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class by its nature
from typing import Any, NamedTuple, Self

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shard_client.bson.values import (
    ARRAY,
    BOOLEAN,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
)
from shard_client.errors import CommandError, ProtocolError
from shard_client.wire.bson_slices import Element, find, iter_elements, string_value
from shard_client.wire.documents import LENIENT, decode

Event = tuple[bytes, bytes]
"""A sort key (the resume token's ``_data`` as bytes) and the event's raw BSON."""

# An event's length, and the 20 bytes up to its token's text:
# 0x03 "_id\0", int32 length of the token, 0x02 "_data\0", int32 length of the text.
_event_front = Struct("<I20s0s").unpack_from
_TOKEN_TEXT = 24
_token_front = Struct("<5sI7sI").unpack_from

# A transaction's event: int64 txnNumber, then the document lsid, then its token.
_transaction_front = Struct("<4x11s8x6sI").unpack_from
_TO_TOKEN = 25

_FEW, _SMALL = 50, 64 * 1024
"""A first batch with fewer events and fewer bytes was not cut short: the member had no more."""
_MOST_COMPLETE = 8 * 1024 * 1024
"""Bytes of events from which a batch may have been cut short at 16 MiB."""

_timestamp = Struct("<II")
_OK = Struct("<d").pack(1.0)


class KeyedToken(NamedTuple):
    """A resume token: its sort key, and its raw document."""

    key: bytes
    token: bytes

    @classmethod
    def of(cls, token: bytes) -> Self:
        """Return a raw token with its key; raises ProtocolError if it has no ``_data``."""
        return cls(token_key(token), token)


@dataclass(slots=True)
class CursorBatch:
    """One reply of a change-stream cursor, or of another one; its slices keep no buffer alive.

    ``watermark`` is the postBatchResumeToken (None if there is none), ``size`` the total bytes of
    the events, ``cluster_time`` the raw $clusterTime document, ``requested`` the number of events
    that were asked for (0 if unknown), ``opening`` whether it answers an aggregate. A batch that
    ``of`` has read has no events before ``split``.
    """

    cursor_id: int
    events: list[Event]
    watermark: KeyedToken | None
    size: int
    cluster_time: bytes | None = None
    operation_time: Timestamp | None = None
    invalidated: bool = False
    namespace: str = ""
    requested: int = 0
    _body: bytes = field(default=b"", repr=False)
    _array: tuple[int, int] = (0, 0)
    opening: bool = False

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read the raw body of an aggregate's or getMore's reply, except its events.

        Raises CommandError if the command failed, and ProtocolError if the reply is malformed.
        """
        reply = {element[1]: element for element in iter_elements(body)}
        if _value(body, reply.get(b"ok"), DOUBLE) != _OK:
            decoded = decode(body, LENIENT)
            if "ok" not in decoded:
                raise ProtocolError("a reply does not say whether it is ok")
            if not decoded["ok"]:
                raise CommandError.from_reply(decoded)
        cursor = reply.get(b"cursor")
        if cursor is None or cursor.type != DOCUMENT:
            raise ProtocolError("a cursor's reply has no cursor")
        fields = {element[1]: element for element in iter_elements(body, cursor.start, cursor.end)}
        cursor_id = _value(body, fields.get(b"id"), INT64) or _value(body, fields.get(b"id"), INT32)
        array = fields.get(b"nextBatch") or fields.get(b"firstBatch")
        if cursor_id is None or array is None or array.type != ARRAY:
            raise ProtocolError("a cursor's reply has no id or no batch")
        token = _value(body, fields.get(b"postBatchResumeToken"), DOCUMENT)
        time = _value(body, reply.get(b"operationTime"), TIMESTAMP)
        return cls(
            int.from_bytes(cursor_id, "little", signed=True),
            [],
            None if token is None else KeyedToken.of(token),
            0,
            cluster_time=_value(body, reply.get(b"$clusterTime"), DOCUMENT),
            operation_time=None if time is None else Timestamp(*_timestamp.unpack(time)[::-1]),
            invalidated=_value(body, fields.get(b"invalidated"), BOOLEAN) == b"\1",
            namespace=(_value(body, fields.get(b"ns"), STRING) or b"")[4:-1].decode(
                errors="replace"
            ),
            _body=body,
            _array=(array.start, array.end),
        )

    def split(self) -> None:
        """Cut the events out of the reply, whose body is then freed.

        Raises ProtocolError if an event has no resume token.
        """
        body, (start, end) = self._body, self._array
        events = _split_fast(body, start + 4, end - 1)
        if events is None:
            events = _split_by_scanning(body, start, end)
            self.size = sum(len(event) for _, event in events)
        else:
            # The array is its length, its elements and a zero byte.
            self.size = end - start - 5 - heads_size(len(events))
        self.events, self._body, self._array = events, b"", (0, 0)

    def documents(self) -> list[bytes]:
        """Return the documents of any cursor's reply; raises ProtocolError."""
        body, (start, end) = self._body, self._array
        elements = iter_elements(body, start, end)
        return [
            body[element.start : element.end] for element in elements if element.type == DOCUMENT
        ]

    @property
    def complete(self) -> bool:
        """Whether it is known that the member had no more events.

        The reply of an ``opening`` is always empty, so it does not show that.
        """
        if self.opening:
            return False
        count = len(self.events)
        few, small = (self.requested, _MOST_COMPLETE) if self.requested else (_FEW, _SMALL)
        return (
            not count
            or (count < few and self.size < small)
            or (self.watermark is not None and self.watermark.key > self.events[-1][0])
        )

    @property
    def reply_bytes(self) -> int:
        """The size of the reply's body before ``split``."""
        return len(self._body)


def token_key(token: bytes) -> bytes:
    """Return the sort key of a raw resume token document: its ``_data`` as bytes.

    Raises ProtocolError if the token has no ``_data``.
    """
    # The usual token has no other field before its data.
    if token[4:11] == b"\x02_data\0":
        end = 14 + int.from_bytes(token[11:15], "little")
        if 15 < end < len(token) - 1 and not token[end]:
            return token[15:end]
    return _token_key(token, 0, len(token))


def token_of(event: bytes) -> bytes:
    """Return the raw token document of a change event, normally its first field."""
    if event[4:9] == b"\x03_id\x00":
        end = 9 + int.from_bytes(event[9:13], "little")
        return event[9:end]
    identifier: RawBSONDocument = RawBSONDocument(event)["_id"]
    return bytes(identifier.raw)


def event_key(event: bytes) -> bytes:
    """Return the sort key of a change event: its token's ``_data`` as bytes."""
    if event[4:9] == b"\x03_id\x00" and event[13:20] == b"\x02_data\x00":
        return event[24 : 23 + int.from_bytes(event[20:24], "little")]
    return token_key(token_of(event))


def _value(body: bytes, element: Element | None, kind: int) -> bytes | None:
    """Return the bytes of a field's value; None without the field, or if it has another type."""
    if element is None or element[0] != kind:
        return None
    return body[element[2] : element[3]]


def _split_fast(body: bytes, start: int, end: int) -> list[Event] | None:
    """Split the elements of an array into events; None if the array needs the scanning split.

    Array elements are named 0, 1, 2, …, so the names' widths are known. The bytes before a token's
    text are the same for all tokens of one length. So one unpacking reads length, those bytes and
    the key, on the assumption that the token is as long as the previous one, and one comparison
    checks the bytes. An event of a transaction has two other fields before its token; only events
    without a token at the front are scanned.
    """
    # Copies, not views: a view is cheaper only from about 1.5 KB and keeps its whole batch alive.
    events: list[Event] = []
    append = events.append
    expected, key_end = b"", 0
    unpack: Callable[[bytes, int], tuple[Any, ...]] = _event_front
    position, width, same_width = start, 3, 10
    key: bytes
    try:
        while position < end:
            for _ in range(same_width):
                event = position + width
                length, before_text, key = unpack(body, event)
                if before_text != expected:
                    length, before_text, key = _event_front(body, event)
                    if found_end := _key_end(before_text):
                        expected, key_end = before_text, found_end
                        unpack = _front_with_key(key_end - _TOKEN_TEXT)
                        length, _, key = unpack(body, event)
                    elif body[position:event] != b"\x03%d\0" % len(events):
                        return None
                    else:
                        key = _key_by_scanning(body, event, min(event + length, end))
                if length <= key_end:
                    return None
                position = event + length
                append((key, body[event:position]))
                if position >= end:
                    break
            same_width = 9 * 10 ** (width - 2)
            width += 1
    except StructError:
        return None
    return events if position == end else None


@lru_cache(maxsize=256)
def _front_with_key(key_size: int) -> Callable[[bytes, int], tuple[int, bytes, bytes]]:
    """Return an unpacker for an event's length, its bytes 4 to 24 and a ``key_size``-byte key."""
    unpack: Callable[[bytes, int], Any] = Struct(f"<I20s{key_size}s").unpack_from
    return unpack


@lru_cache(maxsize=256)
def _key_end(bytes_before_text: bytes) -> int:
    """Return the end offset of an event's sort key, given bytes 4 to 24; 0 if no token is there."""
    id_field, token_size, data_field, text_size = _token_front(bytes_before_text)
    # The token contains its length, this field, possibly _typeBits, and a zero byte.
    if id_field != b"\x03_id\0" or data_field != b"\x02_data\0" or token_size < text_size + 16:
        return 0
    return _TOKEN_TEXT + int(text_size) - 1 if text_size > 1 else 0


def _split_by_scanning(body: bytes, start: int, end: int) -> list[Event]:
    """Split the elements of an array into events with ``_id`` at any position."""
    events = []
    for kind, _, first, last in iter_elements(body, start, end):
        if kind != DOCUMENT:
            raise ProtocolError("a batch holds something else than documents")
        events.append((_key_by_scanning(body, first, last), body[first:last]))
    return events


def _key_by_scanning(body: bytes, start: int, end: int) -> bytes:
    if key := _key_in_transaction(body, start, end):
        return key
    token = find(body, b"_id", start, end)
    if token is None or token.type != DOCUMENT:
        raise ProtocolError("an event has no resume token")
    return _token_key(body, token.start, token.end)


def _key_in_transaction(body: bytes, start: int, end: int) -> bytes:
    """Return the sort key of an event with a transaction's leading fields; b"" for other events."""
    try:
        number, session, session_size = _transaction_front(body, start)
        if number != b"\x12txnNumber\0" or session != b"\x03lsid\0":
            return b""
        front = start + _TO_TOKEN + session_size
        _, before_text, _ = _event_front(body, front)
    except StructError:
        return b""
    key_end = _key_end(before_text)
    return body[front + _TOKEN_TEXT : front + key_end] if front + key_end < end else b""


def _token_key(buffer: bytes, start: int, end: int) -> bytes:
    data = find(buffer, b"_data", start, end)
    if data is None or data.type != STRING or data.end - data.start < 6:
        raise ProtocolError("a resume token has no _data")
    return string_value(buffer, data)


def heads_size(count: int) -> int:
    """Return the bytes of an array of ``count`` documents besides those: its types and indexes."""
    size, digits, first = 2 * count, 1, 0
    while first < count:
        next_first = 10**digits
        size += digits * (min(count, next_first) - first)
        first, digits = next_first, digits + 1
    return size
