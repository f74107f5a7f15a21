"""Resume tokens of versions 1 and 2: those that events get, and those that clients resume from.

Source: docs/protocol.md#resume-tokens.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.errors import failed_to_parse
from embedded.keystring import TIMESTAMP, KeyStringBuilder
from embedded.keystring_numbers import POSITIVE_1_BYTE, ZERO, encode_integer

HIGH_WATER_MARK: Final = 0
EVENT: Final = 128
_FALSE, _TRUE = b"\x6e", b"\x6f"
_UUID: Final = b"\x5a\x10\x04"
_OBJECT: Final = 0x46
_END: Final = b"\x04"


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """The content of a resume token (docs/protocol.md#resume-tokens).

    ``uuid`` is the collection's, or None. ``event_identifier`` is the document that distinguishes
    events of the same time and index, or None. ``fragment`` counts from 0 in split events.
    """

    cluster_time: Timestamp
    version: int
    token_type: int = EVENT
    txn_op_index: int = 0
    from_invalidate: bool = False
    uuid: Binary | None = None
    event_identifier: Mapping[str, Any] | None = None
    fragment: int | None = None

    @classmethod
    def high_water_mark(cls, cluster_time: Timestamp, version: int) -> Self:
        """Return the token that sorts before every event of ``cluster_time``."""
        return cls(cluster_time, version, HIGH_WATER_MARK)

    def _encode(self) -> tuple[bytes, bytes]:
        at = self.cluster_time
        prefix = struct.pack(">BII", TIMESTAMP, at.time, at.inc) + encode_integer(self.version)
        numbers = 2
        if self.version >= 1:
            prefix += encode_integer(self.token_type)
            numbers += 1
        prefix += encode_integer(self.txn_op_index)
        if self.version >= 1:
            prefix += _TRUE if self.from_invalidate else _FALSE
        builder = KeyStringBuilder(prefix, 2 * numbers)
        if self.uuid is not None or self.version >= 2:
            builder.append(self.uuid)
        if self.event_identifier is not None:
            builder.append(self.event_identifier)
        if self.fragment is not None:
            builder.append(self.fragment)
        return builder.key(), builder.type_bits()

    def key(self) -> bytes:
        """Return the KeyString by which the token sorts in its stream."""
        return self._encode()[0]

    def encoded(self) -> tuple[bytes, dict[str, Any]]:
        """Return ``key()`` and ``document()`` with a single encoding."""
        key, type_bits = self._encode()
        token: dict[str, Any] = {"_data": key.hex().upper()}
        if type_bits:
            token["_typeBits"] = Binary(type_bits, 0)
        return key, token

    def document(self) -> dict[str, Any]:
        """Return the client's form of the token: ``{_data: HEX}``, with ``_typeBits`` if any."""
        return self.encoded()[1]

    def of_invalidate(self) -> Self:
        """Return the token of the invalidate that follows this token's event."""
        return replace(self, from_invalidate=True)

    def of_fragment(self, fragment: int) -> Self:
        """Return the token of one fragment (from 0) of this token's event."""
        return replace(self, fragment=fragment)


@dataclass(frozen=True, slots=True)
class Start:
    """The token from which a client starts, as far as a stream reads it.

    Attributes:
        document: the token as the client sent it.
        key: its KeyString.
        unsplit_key: that of the whole event, if the token is a fragment's.
        fragment: the number of that fragment, from 0; None for a whole event.
        is_high_water_mark: whether the token marks a time rather than an event.
    """

    document: dict[str, Any]
    key: bytes
    unsplit_key: bytes
    cluster_time: Timestamp
    version: int
    is_high_water_mark: bool
    txn_op_index: int
    from_invalidate: bool
    uuid: Binary | None
    fragment: int | None

    @classmethod
    def at(cls, cluster_time: Timestamp, version: int) -> Self:
        """Return a start before every event of ``cluster_time``."""
        return cls.of(ResumeToken.high_water_mark(cluster_time, version).document())

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read a token that a server has made; the router refuses others.

        Raises:
            CommandError: 9 FailedToParse if it is no token.
        """
        try:
            return cls._read(document, bytes.fromhex(document["_data"]))
        except (KeyError, TypeError, ValueError, IndexError, struct.error):
            raise failed_to_parse("the resume token is none that a server has made") from None

    @classmethod
    def _read(cls, document: Mapping[str, Any], key: bytes) -> Self:
        seconds, increment = struct.unpack_from(">xII", key)
        version, at = _integer(key, 9)
        token_type, from_invalidate = EVENT, False
        if version >= 1:
            token_type, at = _integer(key, at)
        index, at = _integer(key, at)
        if version >= 1:
            from_invalidate, at = key[at : at + 1] == _TRUE, at + 1
        uuid = None
        if key.startswith(_UUID, at):
            uuid, at = Binary(key[at + 3 : at + 19], 4), at + 19
        fragment, whole = None, key
        if version >= 2 and key[at] == _OBJECT:
            fragment, whole = _fragment(key)
        return cls(
            dict(document),
            key,
            whole,
            Timestamp(seconds, increment),
            version,
            token_type == HIGH_WATER_MARK and not from_invalidate,
            index,
            from_invalidate,
            uuid,
            fragment,
        )


def _integer(key: bytes, at: int) -> tuple[int, int]:
    """Return the non-negative integer at a place, and the place after it."""
    if key[at] == ZERO:
        return 0, at + 1
    end = at + 2 + key[at] - POSITIVE_1_BYTE
    return int.from_bytes(key[at + 1 : end]) >> 1, end


def _fragment(key: bytes) -> tuple[int | None, bytes]:
    """Return the number that follows the document at the key's end, and the key without it.

    The document ends with a zero, and the number is below 128.
    """
    if key[-2] == ZERO and key[-3] == 0:
        return 0, key[:-2] + _END
    if key[-3] == POSITIVE_1_BYTE and key[-4] == 0 and key[-2]:
        return key[-2] >> 1, key[:-3] + _END
    return None, key
