"""Resume tokens of versions 1 and 2, encoded and decoded byte for byte.

Source: docs/protocol.md#resume-tokens.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from embedded.keystring import TIMESTAMP, KeyStringBuilder
from embedded.keystring_decoding import decode_key
from embedded.keystring_numbers import encode_integer
from embedded.storage.shell_text import document_text
from shard_client.errors import CommandError

HIGH_WATER_MARK: Final = 0
EVENT: Final = 128
_HEX: Final = frozenset("0123456789abcdefABCDEF")


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

    @property
    def is_high_water_mark(self) -> bool:
        """Whether the token marks a time rather than an event."""
        return self.token_type == HIGH_WATER_MARK and not self.from_invalidate

    def _encode(self) -> tuple[bytes, bytes]:
        at = self.cluster_time
        prefix = struct.pack(">BII", TIMESTAMP, at.time, at.inc) + encode_integer(self.version)
        numbers = 2
        if self.version >= 1:
            prefix += encode_integer(self.token_type)
            numbers += 1
        prefix += encode_integer(self.txn_op_index)
        if self.version >= 1:
            prefix += b"\x6f" if self.from_invalidate else b"\x6e"
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

    def of_fragment(self, fragment: int | None) -> Self:
        """Return the token of one fragment (from 0) of this token's event; None for all of it."""
        return replace(self, fragment=fragment)

    @classmethod
    def parse(cls, token: Mapping[str, Any]) -> Self:
        """Parse a token.

        Raises:
            CommandError: the token is malformed; codes as in docs/protocol.md#resume-tokens.
        """
        data = token.get("_data")
        if not isinstance(data, str):
            raise CommandError(
                40647,
                "Bad resume token: _data of missing or of wrong type. Expected string, got "
                + document_text(token),
            )
        bits = token.get("_typeBits", b"")
        if not isinstance(bits, bytes) or getattr(bits, "subtype", 0) != 0:
            raise CommandError(
                40648, f"Bad resume token: _typeBits of wrong type {document_text(token)}"
            )
        if len(data) % 2 or not _HEX.issuperset(data):
            raise CommandError(
                9, "resume token string was not a valid hex string", code_name="FailedToParse"
            )
        return cls._from_values(_Fields(decode_key(bytes.fromhex(data), bytes(bits))))

    @classmethod
    def _from_values(cls, fields: "_Fields") -> Self:
        first = fields.next(40649, "invalid empty resume token")
        cluster_time = first if isinstance(first, Timestamp) else Timestamp(0, 0)
        version = fields.next_int(
            50796,
            "Resume Token does not contain version",
            50854,
            "Invalid resume token: wrong type for version",
        )
        if version not in (0, 1, 2):
            raise CommandError(50795, "Invalid Resume Token: only supports version 0, 1 and 2")
        token_type = EVENT
        if version >= 1:
            token_type = fields.next_int(
                51055,
                "Resume Token does not contain tokenType",
                51056,
                "Resume Token tokenType is not an int.",
            )
            if token_type not in (EVENT, HIGH_WATER_MARK):
                raise CommandError(51057, f"Token type {token_type} not recognized")
        index = fields.next_int(
            50793,
            "Resume Token does not contain txnOpIndex",
            50855,
            "Resume Token txnOpIndex is not an integer",
        )
        if index < 0:
            raise CommandError(50794, "Invalid Resume Token: txnOpIndex should be non-negative")
        from_invalidate = False
        if version >= 1:
            from_invalidate = fields.next(50872, "Resume Token does not contain fromInvalidate")
            if not isinstance(from_invalidate, bool):
                raise CommandError(50870, "Resume Token fromInvalidate is not a boolean.")
        uuid, identifier, fragment = fields.event(version, token_type)
        return cls(
            cluster_time,
            version,
            token_type,
            index,
            from_invalidate,
            uuid,
            identifier,
            fragment,
        )


class _Fields:
    """The values of a token's key, consumed one by one."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._at = 0

    def _more(self) -> bool:
        return self._at < len(self._values)

    def next(self, missing_code: int, missing: str) -> Any:
        if not self._more():
            raise CommandError(missing_code, missing)
        self._at += 1
        return self._values[self._at - 1]

    def next_int(self, missing_code: int, missing: str, wrong_code: int, wrong: str) -> int:
        value = self.next(missing_code, missing)
        if not isinstance(value, int) or isinstance(value, (bool, Int64)):
            raise CommandError(wrong_code, wrong)
        return value

    def event(
        self, version: int, token_type: int
    ) -> tuple[Binary | None, Mapping[str, Any] | None, int | None]:
        """Consume the values after fromInvalidate: UUID, event identifier, fragment number."""
        if not self._more():
            if version >= 2:
                raise CommandError(6189500, "Expected UUID or null")
            return None, None, None
        uuid = self.next(0, "")
        if uuid is not None and not (isinstance(uuid, Binary) and uuid.subtype == 4):
            raise CommandError(
                207, f"Expected a UUID, found {document_text(uuid)}", code_name="InvalidUUID"
            )
        if not self._more():
            if token_type == EVENT and version >= 2:
                raise CommandError(6189501, "Expected an eventIdentifier for an event resume token")
            return uuid, None, None
        if token_type == HIGH_WATER_MARK:
            raise CommandError(6189504, "Invalid high water mark token")
        identifier = self.next(0, "")
        if not isinstance(identifier, Mapping):
            raise CommandError(6189503, "Resume Token eventIdentifier is not an object")
        fragment = None
        if self._more() and version >= 2:
            fragment = self.next(0, "")
            if not isinstance(fragment, int) or isinstance(fragment, bool) or fragment < 0:
                raise CommandError(
                    7182501, "Resume token 'fragmentNum' must be a non-negative integer."
                )
        if self._more():
            raise CommandError(40646, "invalid oversized resume token")
        return uuid, identifier, fragment
