"""Shard keys: patterns, and key values of documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson import MaxKey, MinKey

from embedded.errors import CommandError, bad_value, not_implemented

KeyValues = tuple[Any, ...]
"""The values of a full shard key, or of its leading fields, in the order of the pattern."""

SHARD_KEY_NOT_FOUND = 61


@dataclass(frozen=True)
class ShardKey:
    """A shard key pattern such as ``{"region": 1, "_id": 1}``.

    Args:
        pattern: field path to 1, in order.

    Raises:
        CommandError: 2 BadValue for another pattern; 238 for a hashed field.
    """

    pattern: Mapping[str, Any]

    def __post_init__(self) -> None:
        kinds = list(self.pattern.values())
        if "hashed" in kinds:
            raise not_implemented("hashed shard keys are not implemented")
        if not kinds or not all(_is_number(kind) and kind == 1 for kind in kinds):
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
        return tuple(self._value(document, path) for path in self.fields)

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
        value: Any = document
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
            if isinstance(value, list):
                raise CommandError(
                    SHARD_KEY_NOT_FOUND,
                    f"Shard key cannot contain array values or array descendants: field '{path}'",
                    code_name="ShardKeyNotFound",
                )
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
