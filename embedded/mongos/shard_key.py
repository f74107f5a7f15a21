"""Shard keys: patterns, key values of documents, and MongoDB's hash."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson import Decimal128, Int64, MaxKey, MinKey

from embedded.storage.bson_values import MISSING
from shard_client.errors import CommandError

KeyValues = tuple[Any, ...]
"""The values of a full shard key in the order of the pattern, with hashed fields already hashed."""

SHARD_KEY_NOT_FOUND = 61
_CANONICAL = {
    0x01: 10, 0x02: 15, 0x03: 20, 0x04: 25, 0x05: 30, 0x06: 0, 0x07: 35, 0x08: 40, 0x09: 45,
    0x0A: 5, 0x0B: 50, 0x0C: 55, 0x0D: 60, 0x0E: 15, 0x0F: 65, 0x10: 10, 0x11: 47, 0x12: 10,
    0x13: 10, 0x7F: 127, 0xFF: -1,
}  # fmt: skip
_NUMBERS = (0x01, 0x10, 0x12, 0x13)
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class ShardKey:
    """A shard key pattern such as ``{"region": 1, "_id": 1}`` or ``{"_id": "hashed"}``.

    Args:
        pattern: field path to 1 or ``"hashed"``, in order; at most one field is hashed.

    Raises:
        CommandError: 2 BadValue for another pattern.
    """

    pattern: Mapping[str, Any]

    def __post_init__(self) -> None:
        kinds = list(self.pattern.values())
        fit = all(kind == "hashed" or (_is_number(kind) and kind == 1) for kind in kinds)
        if not kinds or not fit or kinds.count("hashed") > 1:
            raise CommandError(
                2, f"Shard key {dict(self.pattern)} can contain either a single 'hashed' field or "
                "multiple numerical fields set to a value of 1",
            )  # fmt: skip

    @property
    def fields(self) -> tuple[str, ...]:
        """The field paths, in order."""
        return tuple(self.pattern)

    @property
    def lowest(self) -> KeyValues:
        """The key that sorts before all other keys."""
        return (MinKey(),) * len(self.pattern)

    @property
    def highest(self) -> KeyValues:
        """The key that sorts after all other keys."""
        return (MaxKey(),) * len(self.pattern)

    def of_document(self, document: Mapping[str, Any]) -> KeyValues:
        """Return the key of a stored document; a missing field counts as null.

        Raises:
            CommandError: 61 ShardKeyNotFound if a key field is, or is inside, an array.
        """
        return self.placed(tuple(self._value(document, path) for path in self.fields))

    def placed(self, values: KeyValues) -> KeyValues:
        """Return the leading fields' values in the form of chunk bounds, with the hash applied."""
        return tuple(
            Int64(hashed_value(value)) if kind == "hashed" else value
            for kind, value in zip(self.pattern.values(), values, strict=False)
        )

    def document(self, key: KeyValues) -> dict[str, Any]:
        """Return ``key`` as the document of a chunk bound, ``{field path: value}``."""
        return dict(zip(self.fields, key, strict=True))

    def bound(self, document: Mapping[str, Any]) -> KeyValues:
        """Return the key of a chunk bound's document, as in ``split`` and ``moveChunk``.

        Raises:
            CommandError: 2 BadValue if its fields are not those of the pattern.
        """
        if set(document) != set(self.fields):
            raise CommandError(
                2, f"shard key bounds {dict(document)} do not have the fields of "
                f"{dict(self.pattern)}",
            )  # fmt: skip
        return tuple(document[path] for path in self.fields)

    def _value(self, document: Mapping[str, Any], path: str) -> Any:
        value = field_at(document, path)
        if value is MISSING:
            return None
        if isinstance(value, list):
            raise CommandError(
                SHARD_KEY_NOT_FOUND, f"Shard key cannot contain array values or array descendants: "
                f"field '{path}'", code_name="ShardKeyNotFound",
            )  # fmt: skip
        return value


def field_at(document: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path; ``MISSING`` if it is absent.

    The walk stops at an array and returns the array.
    """
    value: Any = document
    for name in path.split("."):
        if isinstance(value, list):
            return value
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def hashed_value(value: Any) -> int:
    """Return MongoDB's 64-bit hash of a value, which determines the location of hashed shard keys.

    It is the first eight bytes of an MD5 over the seed, the value's canonical type and the value.
    All numbers with the same integer part have the same hash.
    """
    element = bson.encode({"": value})[4:-1]
    digest = hashlib.md5(struct.pack("<i", 0), usedforsecurity=False)
    _hash_element(digest, value, element[0], element[2:], name=None)
    return int(struct.unpack_from("<q", digest.digest())[0])


def _hash_element(digest: Any, value: Any, kind: int, payload: bytes, name: bytes | None) -> None:
    digest.update(struct.pack("<i", _CANONICAL[kind]))
    if name is not None:
        digest.update(name + b"\0")
    if kind in _NUMBERS:
        digest.update(struct.pack("<q", _integer_part(value)))
    elif kind in (0x03, 0x04):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for field, inner in pairs:
            encoded = bson.encode({str(field): inner})[4:-1]
            label = str(field).encode()
            _hash_element(digest, inner, encoded[0], encoded[len(label) + 2 :], label)
        digest.update(struct.pack("<i", 0) + b"\0")
    else:
        digest.update(payload)


def _integer_part(value: Any) -> int:
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    if number != number:  # NaN is hashed as zero
        return 0
    if number >= _INT64_MAX:
        return _INT64_MAX
    if number <= -_INT64_MAX - 1:
        return -_INT64_MAX - 1
    return int(number)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
