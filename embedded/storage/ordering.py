"""MongoDB's order over all BSON values (docs/protocol.md#resume-tokens has its KeyString form)."""

import uuid
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any

from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

SortKey = tuple[int, Hashable]

NULL, NUMBER, STRING, OBJECT, ARRAY, BINARY = 5, 10, 15, 20, 25, 30
OBJECT_ID, BOOLEAN, DATE, TIMESTAMP, REGEX, CODE = 35, 40, 45, 47, 50, 60
MIN_KEY, EMPTY_ARRAY, MAX_KEY = -1, 4, 127

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (dates are decoded without a zone, as UTC)


def sort_key(value: Any) -> SortKey:
    """Return a key that compares as MongoDB compares values: type first, then value.

    Numbers of all types compare by value, NaN below all.

    Raises:
        TypeError: ``value`` is not a BSON value.
    """
    kind = type(value)
    if kind is str:
        return (STRING, value)
    if kind is int or kind is float:
        return (NUMBER, (value == value, value if value == value else 0))  # NaN differs from itself
    if kind is ObjectId:
        return (OBJECT_ID, value)
    if value is None:
        return (NULL, 0)
    if kind is bool:
        return (BOOLEAN, value)
    if isinstance(value, Mapping):
        return (OBJECT, tuple(_field_key(name, item) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (ARRAY, tuple(sort_key(item) for item in value))
    return _rarer_key(value)


def _field_key(name: str, value: Any) -> tuple[int, str, Hashable]:
    rank, body = sort_key(value)
    return (rank, name, body)


def _rarer_key(value: Any) -> SortKey:
    if isinstance(value, int | float):
        return sort_key(int(value) if isinstance(value, int) else float(value))
    if isinstance(value, Decimal128):
        number = value.to_decimal()
        return (NUMBER, (False, 0) if number.is_nan() else (True, number))
    if isinstance(value, datetime):
        delta = value.replace(tzinfo=None) - _EPOCH
        return (DATE, (delta.days * 86_400_000) + delta.seconds * 1000 + delta.microseconds // 1000)
    if isinstance(value, DatetimeMS):
        return (DATE, int(value))
    if isinstance(value, Timestamp):
        return (TIMESTAMP, (value.time, value.inc))
    if isinstance(value, uuid.UUID):
        return (BINARY, (16, 4, value.bytes))
    if isinstance(value, bytes):
        subtype = value.subtype if isinstance(value, Binary) else 0
        return (BINARY, (len(value), subtype, bytes(value)))
    if isinstance(value, Regex):
        return (REGEX, (str(value.pattern), value.flags))
    if isinstance(value, MinKey):
        return (MIN_KEY, 0)
    if isinstance(value, MaxKey):
        return (MAX_KEY, 0)
    if isinstance(value, Code):
        return (CODE, str(value))
    raise TypeError(f"{type(value).__name__} is not a BSON value")
