"""Operations on BSON values: copying, identity, and keys for lookups."""

from collections.abc import Hashable
from struct import pack
from typing import Any, cast

from bson.dbref import DBRef
from bson.int64 import Int64
from bson.objectid import ObjectId

from embedded.storage.ordering import NUMBER, sort_key

Document = dict[str, Any]
IdKey = Hashable


def copied(value: Any) -> Any:
    """Return ``value`` with new dicts and lists; the immutable leaves are shared."""
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
    """Return whether two values are the same BSON, including types and field order."""
    if left is right:
        return True
    kind = type(left)
    if kind is not type(right):
        return isinstance(left, int) and isinstance(right, int) and _same_integer(left, right)
    if kind is dict:
        return (
            len(left) == len(right)
            and all(a == b for a, b in zip(left, right, strict=True))
            and all(identical(left[name], right[name]) for name in left)
        )
    if kind is list:
        return len(left) == len(right) and all(map(identical, left, right))
    if kind is float:
        return pack("<d", left) == pack("<d", right)
    return bool(left == right)


def _same_integer(left: int, right: int) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    return left == right and is_long(left) == is_long(right)


def is_long(value: int) -> bool:
    """Return whether ``value`` is a 64-bit integer in BSON."""
    return isinstance(value, Int64) or not -(1 << 31) <= value < 1 << 31


def id_key(value: Any) -> IdKey:
    """Return a dictionary key that is equal for values that MongoDB compares as equal.

    Numbers of different types are equal; true is not equal to 1.
    """
    kind = type(value)
    if kind is int or kind is str or kind is ObjectId:
        return cast(IdKey, value)
    rank, body = sort_key(value)
    if rank == NUMBER and isinstance(body, tuple) and body[0]:
        return cast(IdKey, body[1])
    return (rank, body)


MISSING: Any = type("Missing", (), {"__repr__": lambda _: "MISSING", "__bool__": lambda _: False})()
"""The value of an absent field in ``value_at``."""


def value_at(document: Any, path: str) -> Any:
    """Return the value at a dotted ``path``, also through array positions, or ``MISSING``."""
    value = document
    for part in path.split("."):
        value = child(value, part)
    return value


def child(holder: Any, part: str) -> Any:
    """Return a document's field or an array's element, or ``MISSING``."""
    if isinstance(holder, dict):
        return holder.get(part, MISSING)
    if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
        return holder[int(part)]
    return MISSING
