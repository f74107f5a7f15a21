"""Shard keys: patterns, key values of documents, and their hash."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson import Int64, MaxKey, MinKey

from embedded.errors import CommandError, bad_value
from embedded.storage.bson_values import MISSING

KeyValues = tuple[Any, ...]
"""The values of a full shard key in the order of the pattern, with hashed fields already hashed."""

SHARD_KEY_NOT_FOUND = 61
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
            raise bad_value(
                f"Shard key {dict(self.pattern)} can contain either a single 'hashed' field or "
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
            raise bad_value(f"shard key bounds {dict(document)} do not have the fields of "
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
    """Return the 64-bit hash of a value, which determines the location of hashed shard keys.

    As in MongoDB, numbers with the same integer part have the same hash; the hash is another one.
    """
    if isinstance(value, float) and value == value and abs(value) < _INT64_MAX:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = Int64(value)
    digest = hashlib.md5(bson.encode({"": value}), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
