"""Resume tokens (docs/protocol.md#resume-tokens): decoded, encoded, and read as sort keys.

A sort key is a token's ``_data``: upper-case hexadecimal digits, which compare as the events are
ordered. It is bytes or text, as the caller has it.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from uuid import UUID

import bson
from bson.binary import Binary
from bson.timestamp import Timestamp

from shard_client.bson.keystring import (
    END,
    Kind,
    Reader,
    encode_integer,
    fitted_type_bits,
    require_whole_key,
)
from shard_client.bson.values import MalformedValueError

HIGH_WATER_MARK: Final = 0
EVENT: Final = 128

TIME_DIGITS: Final = 18
"""Length of a sort key's prefix that holds its cluster time, in characters."""

AFTER_ANY_DIGIT: Final = b"G"
"""Sorts after every hexadecimal digit."""

NEWEST: Final = 2
"""The latest version of tokens."""

AFTER_VERSION: Final = 22
"""Length of the prefix that holds cluster time and version, in characters."""

PLAIN_EVENT: Final = "2C0100296E"
"""What follows after the version in most sort keys: token type, txnOpIndex and fromInvalidate of an
event outside of transactions that is no invalidate."""

_VERSION_DIGITS: Final[Mapping[bytes | str, int]] = {
    digits: version
    for version, text in enumerate(("29", "2B02", "2B04"))
    for digits in (text, text.encode())
}
_ENDS_OF_MARKS: Final = ("292904", "2B0229296E04", "2B0429296E1404")
_ALL_ENDS_OF_MARKS: Final = frozenset({*_ENDS_OF_MARKS, *map(str.encode, _ENDS_OF_MARKS)})
# clusterTime, the version (a small positive int), the token type, txnOpIndex (an int of any
# length), fromInvalidate.
_FRONT: Final = re.compile(
    r"82[0-9A-F]{16}2B[0-9A-F]{2}(?:29|2C0100)"
    r"(?:29|2B.{2}|2C.{4}|2D.{6}|2E.{8}|2F.{10})(6E|6F)"
)
_FROM_INVALIDATE: Final = "6F"
OPERATION_DESCRIPTION: Final = b"operationDescription\0".hex().upper()
_CLASSIC_OPERATIONS: Final = frozenset(
    {"insert", "update", "replace", "delete", "drop", "rename", "dropDatabase", "invalidate"}
)
_CHANGES: Final = frozenset({b"insert", b"update", b"replace", b"delete"})
_OPERATION: Final = b"\x46\x3coperationType\0\x3c"
_KEY: Final = b"\x46documentKey\0"
_UUID_HEAD: Final = b"\x5a\x10\x04"
_END: Final = bytes((END,))
_BITS_BEFORE_IDENTIFIER: Final = 6
"""Type bits of the version, the token type and txnOpIndex."""
_INT32_END: Final = 2**31


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A resume token.

    ``data`` is its sort key, ``type_bits`` its ``_typeBits``, None without. ``token_type`` is 0 for
    a high water mark and 128 for an event; ``event_identifier`` is the KeyString of the document
    that distinguishes events of one time and index (b"" if there is none); ``fragment_num`` counts
    from 0 in split events.
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
    type_bits: bytes | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Decode a token document; raises MalformedValueError with a server's message and code."""
        data, type_bits = document.get("_data"), document.get("_typeBits", b"")
        if not isinstance(data, str):
            raise MalformedValueError("Bad resume token: _data of missing or of wrong type", 40647)
        if not isinstance(type_bits, bytes) or getattr(type_bits, "subtype", 0) != 0:
            raise MalformedValueError("Bad resume token: _typeBits of wrong type", 40648)
        return cls.decode(data, bytes(type_bits) if "_typeBits" in document else None)

    @classmethod
    def decode(cls, text: str, type_bits: bytes | None = None) -> Self:
        """Decode a token's ``_data``; raises MalformedValueError as ``parse`` does."""
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = None
        if key is None or (text and not text.isalnum()):
            raise MalformedValueError("resume token string was not a valid hex string", 9)
        require_whole_key(key)
        reader = Reader(key)
        cluster_time = _cluster_time(reader)
        version = _version(reader)
        token_type = _token_type(reader) if version >= 1 else EVENT
        txn_op_index = _txn_op_index(reader)
        from_invalidate = _from_invalidate(reader) if version >= 1 else False
        uuid, identifier, fragment = _event(reader, version, token_type)
        return cls(
            cluster_time,
            version,
            token_type,
            txn_op_index,
            from_invalidate,
            uuid,
            identifier,
            fragment,
            # Bytes after the key's end are dropped, as by a server that re-encodes the token.
            _digits(key[: reader.position] + _END),
            type_bits,
        )

    @classmethod
    def high_water_mark(cls, time: Timestamp, version: int) -> Self:
        """Return the token that sorts before every event of ``time`` and after all earlier ones."""
        data = high_water_mark(time, version).encode("ascii")
        return cls(
            time,
            version,
            HIGH_WATER_MARK,
            0,
            from_invalidate=False,
            uuid=None,
            event_identifier=b"",
            fragment_num=None,
            data=data,
        )

    @property
    def document(self) -> dict[str, Any]:
        """The token as clients have it: ``{_data: HEX}``, with ``_typeBits`` if it has any."""
        document: dict[str, Any] = {"_data": self.data.decode("ascii")}
        if self.type_bits is not None:
            document["_typeBits"] = Binary(self.type_bits, 0)
        return document

    @property
    def raw(self) -> bytes:
        """The token's BSON document."""
        return bson.encode(self.document)

    @property
    def is_high_water_mark(self) -> bool:
        """Whether no event can carry this token."""
        return self.token_type == HIGH_WATER_MARK and self.uuid is None and not self.txn_op_index

    @property
    def whole_key(self) -> bytes:
        """The sort key of the whole event, if this is the token of a fragment of it."""
        if self.fragment_num is None:
            return self.data
        return self.data[: -2 - 2 * len(encode_integer(self.fragment_num))] + b"04"

    def without_fragment(self) -> Self:
        """Return the token of the whole event, if this is the token of a fragment of it."""
        return self._replace_fragment(None, self.whole_key)

    def in_version(self, version: int, operation: bytes) -> Self | None:
        """Return the token that the same event has in version 1 or 2, or None if that is unknown.

        ``operation`` is the event's operationType, which version 1 leaves out of some tokens. The
        tokens of fragments have no other version. Those of drops and renames are unknown in version
        2, and so is any token of version 0.
        """
        if version == self.version:
            return self
        if {version, self.version} != {1, NEWEST} or self.fragment_num is not None:
            return None
        identifier = self.event_identifier
        if version == 1:
            data = as_version(self.data, 1)
            other = ResumeToken.decode(data.decode("ascii")).event_identifier
            strings = 0 if other == identifier else -1
        else:
            if operation in _CHANGES and identifier:
                other = b"%b%b\0%b%b\0" % (_OPERATION, operation, _KEY, identifier)
            elif identifier.startswith(_OPERATION):
                other = identifier
            else:
                return None
            front = bytes.fromhex(self.data.decode("ascii"))[: -len(identifier) - 1]
            at = TIME_DIGITS // 2
            data = _digits(
                front[:at]
                + encode_integer(NEWEST)
                + front[at + len(encode_integer(1)) :]
                + other
                + _END
            )
            strings = 0 if other == identifier else 1
        bits = self.type_bits
        if bits is not None:
            raw = bytes.fromhex(data.decode("ascii"))
            place = _BITS_BEFORE_IDENTIFIER
            bits = fitted_type_bits(raw, bits, strings=strings, place=place) or None
        return replace(self, version=version, event_identifier=other, data=data, type_bits=bits)

    def token_of_invalidate(self) -> Self:
        """Return the token of the invalidate that this token's event causes; raises ValueError."""
        return replace(self, from_invalidate=True, data=key_of_invalidate(self.data))

    def with_fragment(self, number: int) -> Self:
        """Return the token of a fragment of this token's event, counted from 0."""
        return self._replace_fragment(
            number, self.whole_key[:-2] + _digits(encode_integer(number)) + b"04"
        )

    def _replace_fragment(self, number: int | None, data: bytes) -> Self:
        bits = self.type_bits
        if bits is not None:
            bits = fitted_type_bits(bytes.fromhex(data.decode("ascii")), bits)
        return replace(self, fragment_num=number, data=data, type_bits=bits)


def high_water_mark(time: Timestamp, version: int = 1) -> str:
    """Return the sort key of a high water mark: below the time's events, above earlier ones."""
    return f"82{time.time:08X}{time.inc:08X}{_ENDS_OF_MARKS[version]}"


def is_high_water_mark(key: bytes | str) -> bool:
    """Return whether a sort key is that of a high water mark, which no event has."""
    return key[TIME_DIGITS:] in _ALL_ENDS_OF_MARKS


def cluster_time_of(key: bytes | str) -> Timestamp:
    """Return the cluster time that a sort key begins with; raises ValueError if it has none."""
    return Timestamp(int(key[2:10], 16), int(key[10:TIME_DIGITS], 16))


def cluster_seconds_of(key: bytes | str) -> int:
    """Return the seconds of the cluster time that a sort key begins with; raises ValueError."""
    return int(key[2:10], 16)


def next_tick(time: Timestamp) -> Timestamp:
    """Return the cluster time that follows ``time`` immediately."""
    if time.inc == 0xFFFFFFFF:
        return Timestamp(time.time + 1, 0)
    return Timestamp(time.time, time.inc + 1)


def first_key(time: Timestamp) -> bytes:
    """Return the prefix of every sort key of ``time``, above all keys of earlier times."""
    return f"82{time.time:08X}{time.inc:08X}".encode("ascii")


def version_of(key: bytes | str) -> int | None:
    """Return the version of a sort key's token, or None if it is unknown."""
    version = _VERSION_DIGITS.get(key[TIME_DIGITS:AFTER_VERSION])
    return _VERSION_DIGITS.get(key[TIME_DIGITS : TIME_DIGITS + 2]) if version is None else version


def is_token(key: str) -> bool:
    """Return whether a text begins as the sort key of a token of version 1 or later does."""
    return _FRONT.match(key) is not None


def is_invalidate(key: str) -> bool:
    """Return whether a sort key is that of an invalidate."""
    if key.startswith(PLAIN_EVENT, AFTER_VERSION):
        return False
    match = _FRONT.match(key)
    return match is not None and match[1] == _FROM_INVALIDATE


def is_of_document(key: str) -> bool:
    """Return whether a sort key is that of a document's change.

    All others are those of collections and databases, which several shards may report under one
    token.
    """
    if key.startswith(PLAIN_EVENT, AFTER_VERSION):
        identifier = key[AFTER_VERSION + len(PLAIN_EVENT) :]
    else:
        match = _FRONT.match(key)
        identifier = key[match.end() :] if match else ""
    if identifier.startswith("5A10"):  # the collection's UUID: a length, a subtype, 16 bytes
        identifier = identifier[len("5A1004") + 32 :]
    return identifier.startswith("46") and OPERATION_DESCRIPTION not in identifier


def key_of_invalidate(key: bytes) -> bytes:
    """Return the sort key of the invalidate that an event with the sort key ``key`` causes.

    It differs in ``fromInvalidate`` only (docs/protocol.md#events). Raises ValueError if the key
    has no such value, which holds for version 0, or is malformed.
    """
    raw = bytes.fromhex(key.decode("ascii"))
    reader = Reader(raw)
    try:
        for _ in range(4):
            reader.next()
    except MalformedValueError as error:
        raise MalformedValueError(f"a resume token is malformed: {error}", error.code) from error
    if raw[reader.position] != Kind.FALSE:
        raise ValueError("a resume token does not have fromInvalidate")
    at = 2 * reader.position
    return key[:at] + b"%02X" % Kind.TRUE + key[at + 2 :]


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
        time, _, kind, index, invalidate = (reader.next() for _ in range(5))
        rest = [reader.next()] if reader.more else []
        identifier = _identifier_of_version_1(reader) if reader.more else b""
    except MalformedValueError:
        return key
    parts = [raw[time.start : time.end]]
    if version >= 1:
        parts += [encode_integer(version), raw[kind.start : kind.end]]
    else:
        parts.append(encode_integer(0))
    parts.append(raw[index.start : index.end])
    if version >= 1:
        parts.append(raw[invalidate.start : invalidate.end])
    if rest and rest[0].kind != Kind.NULL:
        parts.append(raw[rest[0].start : rest[0].end])
    return _digits(b"".join((*parts, identifier, _END)))


def _digits(data: bytes) -> bytes:
    return data.hex().upper().encode("ascii")


def _identifier_of_version_1(reader: Reader) -> bytes:
    """Return version 1's event identifier: the document key, for classic operations."""
    identifier = reader.next()
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


def _cluster_time(reader: Reader) -> Timestamp:
    if not reader.more:
        raise MalformedValueError("invalid empty resume token", 40649)
    value = reader.next()
    if value.kind != Kind.TIMESTAMP:
        return Timestamp(0, 0)
    return Timestamp(*struct.unpack(">II", reader.content(value)))


def _integer(reader: Reader, missing: tuple[str, int], wrong: tuple[str, int]) -> int:
    """Return the next value, an integer; the errors without one are given as message and code."""
    number = reader.integer(reader.next()) if (more := reader.more) else None
    if number is None:
        raise MalformedValueError(*(wrong if more else missing))
    return number


def _version(reader: Reader) -> int:
    version = _integer(
        reader,
        ("Resume Token does not contain version", 50796),
        ("Invalid resume token: wrong type for version", 50854),
    )
    if version not in (0, 1, 2):
        raise MalformedValueError("Invalid Resume Token: only supports version 0, 1 and 2", 50795)
    return version


def _token_type(reader: Reader) -> int:
    token_type = _integer(
        reader,
        ("Resume Token does not contain tokenType", 51055),
        ("Resume Token tokenType is not an int.", 51056),
    )
    if token_type not in (HIGH_WATER_MARK, EVENT):
        raise MalformedValueError(f"Token type {token_type} not recognized", 51057)
    return token_type


def _txn_op_index(reader: Reader) -> int:
    index = _integer(
        reader,
        ("Resume Token does not contain txnOpIndex", 50793),
        ("Resume Token txnOpIndex is not an integer", 50855),
    )
    if index < 0:
        raise MalformedValueError("Invalid Resume Token: txnOpIndex should be non-negative", 50794)
    return index


def _from_invalidate(reader: Reader) -> bool:
    if not reader.more:
        raise MalformedValueError("Resume Token does not contain fromInvalidate", 50872)
    kind = reader.next().kind
    if kind not in (Kind.TRUE, Kind.FALSE):
        raise MalformedValueError("Resume Token fromInvalidate is not a boolean.", 50870)
    return kind == Kind.TRUE


def _uuid(reader: Reader) -> UUID | None:
    value = reader.next()
    if value.kind == Kind.NULL:
        return None
    content = reader.content(value) if value.kind == Kind.BINARY else b""
    if content[:2] != _UUID_HEAD[1:]:
        raise MalformedValueError("uuid of a resume token must be a UUID", 207)
    return UUID(bytes=content[2:])


def _event(reader: Reader, version: int, token_type: int) -> tuple[UUID | None, bytes, int | None]:
    """Read the values after fromInvalidate: UUID, event identifier and fragment."""
    if not reader.more:
        if version > 1:
            raise MalformedValueError("Expected UUID or null", 6189500)
        return None, b"", None
    uuid = _uuid(reader)
    if not reader.more:
        if token_type == EVENT and version >= 2:
            raise MalformedValueError(
                "Expected an eventIdentifier for an event resume token", 6189501
            )
        return uuid, b"", None
    if token_type == HIGH_WATER_MARK:
        raise MalformedValueError("Invalid high water mark token", 6189504)
    kind, start, end = reader.next()
    if kind != Kind.OBJECT:
        raise MalformedValueError("Resume Token eventIdentifier is not an object", 6189503)
    fragment = None
    if reader.more and version >= 2:
        wrong = "Resume token 'fragmentNum' must be a non-negative integer.", 7182501
        fragment = _integer(reader, wrong, wrong)
        if not 0 <= fragment < _INT32_END:
            raise MalformedValueError(*wrong)
    if reader.more:
        raise MalformedValueError("invalid oversized resume token", 40646)
    return uuid, reader.data[start:end], fragment
