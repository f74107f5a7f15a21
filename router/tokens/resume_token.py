"""Resume tokens: decoding, comparison, high water marks (docs/protocol.md#resume-tokens)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import UUID

import bson
from bson.binary import Binary
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from router.bson_text import render
from router.tokens.keystring import Kind, OpaqueValueError, Reader, Value, check, integer
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import token_data

HIGH_WATER_MARK: Final = 0
EVENT: Final = 128

TIME_DIGITS: Final = 18
"""Length of a sort key's prefix that holds its cluster time, in characters."""

AFTER_ANY_DIGIT: Final = b"G"
"""Sorts after every hexadecimal digit."""

_VERSION_DIGITS: Final = {b"29": 0, b"2B02": 1, b"2B04": 2}
_CLASSIC_OPERATIONS: Final = frozenset(
    {"insert", "update", "replace", "delete", "drop", "rename", "dropDatabase", "invalidate"}
)
_FRAGMENT: Final = re.compile(rb"(?:\x29|\x2b.|\x2c..)\x04", re.DOTALL)
_ENDS_OF_MARKS: Final = frozenset({b"292904", b"2B0229296E04", b"2B0429296E1404"})
_INT32_END: Final = 2**31
_DOCUMENT_KEY: Final = b"\x46documentKey\0"


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A decoded resume token.

    ``data`` is the sort key: the ``_data`` hex as bytes; ``raw`` the token's BSON document.
    ``token_type`` is 0 for a high water mark and 128 for an event; ``event_identifier`` is the
    KeyString of the document key or the operation (b"" if there is none).
    """

    cluster_time: Timestamp
    version: int
    token_type: int
    txn_op_index: int
    from_invalidate: bool
    uuid: UUID | None
    event_identifier: bytes
    fragment_num: int | None
    data: bytes
    raw: bytes

    @property
    def is_high_water_mark(self) -> bool:
        """Whether no event can carry this token."""
        return self.token_type == HIGH_WATER_MARK and self.uuid is None and not self.txn_op_index

    @property
    def whole_key(self) -> bytes:
        """The sort key of the whole event, if this is the token of a fragment of it."""
        if self.fragment_num is None:
            return self.data
        identifier = self.event_identifier.hex().upper().encode("ascii")
        return self.data[: self.data.index(identifier) + len(identifier)] + b"04"

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Decode a token document from a client; raises mongos's CommandError if it is invalid."""
        return cls.decode(*checked_fields(document))

    @classmethod
    def decode(cls, text: str, type_bits: bytes | None = None) -> Self:
        """Decode a token's ``_data`` and ``_typeBits``; raises mongos's CommandError."""
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = None
        if key is None or (text and not text.isalnum()):
            raise CommandError(
                ErrorCode.FailedToParse, "resume token string was not a valid hex string"
            )
        check(key)
        reader = Reader(key)
        cluster_time = _cluster_time(reader)
        version = _version(reader)
        token_type = _token_type(reader) if version >= 1 else EVENT
        txn_op_index = _txn_op_index(reader)
        from_invalidate = _from_invalidate(reader) if version >= 1 else False
        uuid, identifier, fragment, end = _event(reader, version, token_type)
        # Bytes after the key's end are dropped, as by a server that re-encodes the token.
        data = key[: end + 1].hex().upper()
        fields: dict[str, Any] = {"_data": data}
        if type_bits is not None:
            fields["_typeBits"] = Binary(type_bits, 0)
        return cls(
            cluster_time,
            version,
            token_type,
            txn_op_index,
            from_invalidate,
            uuid,
            identifier,
            fragment,
            data.encode("ascii"),
            bson.encode(fields),
        )


def checked_fields(document: Mapping[str, Any]) -> tuple[str, bytes | None]:
    """Return a token document's ``_data`` and ``_typeBits``, or raise mongos's CommandError."""
    data = document.get("_data")
    if not isinstance(data, str):
        raise CommandError(
            40647,
            "Bad resume token: _data of missing or of wrong type. Expected string, got "
            + render(document),
        )
    if "_typeBits" not in document:
        return data, None
    type_bits = document["_typeBits"]
    if not isinstance(type_bits, bytes) or getattr(type_bits, "subtype", 0) != 0:
        raise CommandError(40648, "Bad resume token: _typeBits of wrong type " + render(document))
    return data, bytes(type_bits)


def high_water_mark(time: Timestamp, version: int) -> ResumeToken:
    """Return the token that sorts before every event of ``time`` and after all earlier ones."""
    middle = {0: "2929", 1: "2B0229296E", 2: "2B0429296E14"}[version]
    data = f"82{time.time:08X}{time.inc:08X}{middle}04"
    return ResumeToken(
        time,
        version,
        HIGH_WATER_MARK,
        0,
        from_invalidate=False,
        uuid=None,
        event_identifier=b"",
        fragment_num=None,
        data=data.encode("ascii"),
        raw=bson.encode({"_data": data}),
    )


def cluster_time_of(key: bytes) -> Timestamp:
    """Return the cluster time that a sort key begins with."""
    return Timestamp(int(key[2:10], 16), int(key[10:TIME_DIGITS], 16))


def of_invalidate(key: bytes) -> bytes:
    """Return the sort key of the invalidate that an event with the sort key ``key`` causes.

    It differs in ``fromInvalidate`` only (docs/protocol.md#events). Raises ValueError if the key
    has no such value, which holds for version 0, or is malformed.
    """
    raw = bytes.fromhex(key.decode("ascii"))
    reader = Reader(raw)
    try:
        for _ in range(4):
            reader.next()
    except (OpaqueValueError, CommandError) as error:
        raise ValueError(f"a resume token is malformed: {error}") from error
    if raw[reader.position] != Kind.FALSE:
        raise ValueError("a resume token does not have fromInvalidate")
    at = 2 * reader.position
    return key[:at] + b"%02X" % Kind.TRUE + key[at + 2 :]


def is_high_water_mark(key: bytes) -> bool:
    """Return whether a sort key is that of a high water mark, which no event has."""
    return key[TIME_DIGITS:] in _ENDS_OF_MARKS


def first_key(time: Timestamp) -> bytes:
    """Return the prefix of every sort key of ``time``, above all keys of earlier times."""
    return f"82{time.time:08X}{time.inc:08X}".encode("ascii")


def version_of(key: bytes) -> int | None:
    """Return the version of a sort key's token, or None if it is unknown."""
    version = _VERSION_DIGITS.get(key[TIME_DIGITS : TIME_DIGITS + 4])
    return _VERSION_DIGITS.get(key[TIME_DIGITS : TIME_DIGITS + 2]) if version is None else version


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
    return token_data(token_of(event))


def as_version(key: bytes, version: int) -> bytes:
    """Return the sort key that the same event has in an older token version.

    Version 2 adds the operation type to the event identifier and distinguishes an absent UUID from
    a null one; version 1 added tokenType and fromInvalidate. A key of version ``version`` or older,
    or one that cannot be decoded, is returned unchanged.
    """
    own = version_of(key)
    if own is None or own <= version:
        return key
    raw = bytes.fromhex(key.decode("ascii"))
    reader = Reader(raw)
    try:
        time = reader.next()
        reader.next()
        kind = reader.next()
        index = reader.next()
        invalidate = reader.next()
        rest = [reader.next()] if reader.more else []
        identifier = _identifier_of_version_1(reader) if reader.more else b""
    except (OpaqueValueError, CommandError):
        return key
    parts = [raw[time.start : time.end]]
    if version >= 1:
        parts += [bytes((0x2B, version << 1)), raw[kind.start : kind.end]]
    else:
        parts.append(b"\x29")
    parts.append(raw[index.start : index.end])
    if version >= 1:
        parts.append(raw[invalidate.start : invalidate.end])
    if rest and rest[0].kind != Kind.NULL:
        parts.append(raw[rest[0].start : rest[0].end])
    parts += [identifier, b"\x04"]
    return b"".join(parts).hex().upper().encode("ascii")


def _identifier_of_version_1(reader: Reader) -> bytes:
    """Return version 1's event identifier: the document key, for classic operations.

    Raises OpaqueValueError if a document key with a fraction does not end the token.
    """
    start = reader.position
    try:
        identifier = reader.next()
    except OpaqueValueError:
        # The document key is the last value of the identifier, which ends the token.
        _, header, document_key = reader.data[start:].partition(_DOCUMENT_KEY)
        if not header or not document_key.endswith(b"\0\0\x04"):
            raise
        return document_key[:-2]
    whole = reader.data[identifier.start : identifier.end]
    fields = reader.fields(identifier)
    operation = fields.get("operationType")
    if operation is None or operation.kind != Kind.STRING:
        return whole
    name = reader.content(operation)[:-1].decode("utf-8", "replace")
    if name not in _CLASSIC_OPERATIONS:
        return whole
    key = fields.get("documentKey")
    return b"" if key is None else reader.data[key.start : key.end]


def _next(reader: Reader) -> Value | None:
    """Step over the next value; return None if it is a number that no token contains."""
    try:
        return reader.next()
    except OpaqueValueError:
        return None


def _cluster_time(reader: Reader) -> Timestamp:
    if not reader.more:
        raise CommandError(40649, "invalid empty resume token")
    value = _next(reader)
    if value is None or value.kind != Kind.TIMESTAMP:
        return Timestamp(0, 0)
    content = reader.content(value)
    return Timestamp(int.from_bytes(content[:4], "big"), int.from_bytes(content[4:], "big"))


def _integer(reader: Reader, missing: CommandError, wrong: CommandError) -> int:
    if not reader.more:
        raise missing
    value = _next(reader)
    number = None if value is None else integer(value.kind, reader.content(value))
    if number is None:
        raise wrong
    return number


def _version(reader: Reader) -> int:
    version = _integer(
        reader,
        CommandError(50796, "Resume Token does not contain version"),
        CommandError(50854, "Invalid resume token: wrong type for version"),
    )
    if version not in (0, 1, 2):
        raise CommandError(50795, "Invalid Resume Token: only supports version 0, 1 and 2")
    return version


def _token_type(reader: Reader) -> int:
    token_type = _integer(
        reader,
        CommandError(51055, "Resume Token does not contain tokenType"),
        CommandError(51056, "Resume Token tokenType is not an int."),
    )
    if token_type not in (HIGH_WATER_MARK, EVENT):
        raise CommandError(51057, f"Token type {token_type} not recognized")
    return token_type


def _txn_op_index(reader: Reader) -> int:
    index = _integer(
        reader,
        CommandError(50793, "Resume Token does not contain txnOpIndex"),
        CommandError(50855, "Resume Token txnOpIndex is not an integer"),
    )
    if index < 0:
        raise CommandError(50794, "Invalid Resume Token: txnOpIndex should be non-negative")
    return index


def _from_invalidate(reader: Reader) -> bool:
    if not reader.more:
        raise CommandError(50872, "Resume Token does not contain fromInvalidate")
    value = _next(reader)
    if value is None or value.kind not in (Kind.TRUE, Kind.FALSE):
        raise CommandError(50870, "Resume Token fromInvalidate is not a boolean.")
    return value.kind == Kind.TRUE


def _uuid(reader: Reader) -> UUID | None:
    value = _next(reader)
    if value is not None and value.kind == Kind.NULL:
        return None
    content = b"" if value is None or value.kind != Kind.BINARY else reader.content(value)
    if content[:2] != b"\x10\x04":
        raise CommandError(207, "uuid of a resume token must be a UUID", code_name="InvalidUUID")
    return UUID(bytes=content[2:])


def _event(
    reader: Reader, version: int, token_type: int
) -> tuple[UUID | None, bytes, int | None, int]:
    """Read the values after fromInvalidate: UUID, event identifier, fragment, and the key's end."""
    if not reader.more:
        if version > 1:
            raise CommandError(6189500, "Expected UUID or null")
        return None, b"", None, reader.position
    uuid = _uuid(reader)
    if not reader.more:
        if token_type == EVENT and version >= 2:
            raise CommandError(6189501, "Expected an eventIdentifier for an event resume token")
        return uuid, b"", None, reader.position
    if token_type == HIGH_WATER_MARK:
        raise CommandError(6189504, "Invalid high water mark token")
    start = reader.position
    if reader.data[start] != Kind.OBJECT:
        raise CommandError(6189503, "Resume Token eventIdentifier is not an object")
    try:
        reader.next()
    except OpaqueValueError:
        # The document key contains a fraction. It and the identifier, two objects, end with 00.
        end = reader.data.rfind(b"\0\0") + 2
        if version < 2 or not _FRAGMENT.fullmatch(reader.data, end):
            return uuid, reader.data[start:-1], None, len(reader.data) - 1
        reader.position = end
    identifier = reader.data[start : reader.position]
    fragment = None
    if reader.more and version >= 2:
        wrong = CommandError(7182501, "Resume token 'fragmentNum' must be a non-negative integer.")
        fragment = _integer(reader, wrong, wrong)
        if not 0 <= fragment < _INT32_END:
            raise wrong
    if reader.more:
        raise CommandError(40646, "invalid oversized resume token")
    return uuid, identifier, fragment, reader.position
