"""Values as BSON sees them: copying, identity, and keys for lookups."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import bson
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId

Document = dict[str, Any]
IdKey = Hashable

_PLAIN = (str, ObjectId)


def copied(value: Any) -> Any:
    """Return ``value`` with its own dicts and lists; leaves are shared, since they never change."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def without_dbrefs(value: Any) -> Any:
    """Return ``value`` with DBRefs as the subdocuments that they are in BSON."""
    if isinstance(value, DBRef):
        return {name: without_dbrefs(item) for name, item in value.as_doc().items()}
    if isinstance(value, dict):
        return {name: without_dbrefs(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_dbrefs(item) for item in value]
    return value


def identical(left: Any, right: Any) -> bool:
    """Tell whether two values are the same BSON: types, field order and all."""
    if left is right:
        return True
    kind = type(left)
    if kind is not type(right):
        return False
    if kind is dict:
        return (
            len(left) == len(right)
            and all(a == b for a, b in zip(left, right, strict=True))
            and all(identical(left[name], right[name]) for name in left)
        )
    if kind is list:
        return len(left) == len(right) and all(map(identical, left, right))
    if kind is float:
        return bson.encode({"": left}) == bson.encode({"": right})
    return bool(left == right)


def id_key(value: Any) -> IdKey:
    """Return a dictionary key that is equal for values that MongoDB compares as equal.

    Numbers of different types are equal; true is not 1.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, Decimal128):
        return value.to_decimal()
    if isinstance(value, Mapping):
        return ("object", tuple((name, id_key(item)) for name, item in value.items()))
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return ("array", tuple(id_key(item) for item in value))
    return (type(value).__name__, bson.encode({"": value}))


MISSING: Any = type("Missing", (), {"__repr__": lambda _: "MISSING", "__bool__": lambda _: False})()
"""What ``value_at`` finds where there is nothing."""


def value_at(document: Any, path: str) -> Any:
    """Return the value at a dotted ``path`` (through array positions too), or ``MISSING``."""
    value = document
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part, MISSING)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value
