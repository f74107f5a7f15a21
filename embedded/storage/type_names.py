"""BSON's type names and numbers, for ``$type`` and for error messages."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from embedded.errors import bad_value
from embedded.storage.bson_values import is_long

_NUMBERS = {
    1: "double",
    2: "string",
    3: "object",
    4: "array",
    5: "binData",
    7: "objectId",
    8: "bool",
    9: "date",
    10: "null",
    11: "regex",
    13: "javascript",
    16: "int",
    17: "timestamp",
    18: "long",
    19: "decimal",
    -1: "minKey",
    127: "maxKey",
}

_CLASSES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Code, "javascript"),  # a subclass of str
    (str, "string"),
    (float, "double"),
    (bool, "bool"),
    (Mapping, "object"),
    ((list, tuple), "array"),
    (ObjectId, "objectId"),
    (bytes, "binData"),
    ((datetime, DatetimeMS), "date"),
    (type(None), "null"),
    (Regex, "regex"),
    (Timestamp, "timestamp"),
    (Decimal128, "decimal"),
    (MinKey, "minKey"),
    (MaxKey, "maxKey"),
)


def type_name(value: Any) -> str:
    """Return the name of a value's BSON type, such as ``long``."""
    for kind, name in _CLASSES:
        if isinstance(value, kind):
            return name
    if isinstance(value, int):
        return "long" if is_long(value) else "int"
    return "undefined"


def has_type(value: Any, wanted: Any) -> bool:
    """Return whether ``value``, or an element of it, has one of the ``$type``s ``wanted``.

    Raises:
        CommandError: 2 BadValue for an unknown type.
    """
    names: set[str] = set()
    for each in wanted if isinstance(wanted, list) else [wanted]:
        name = str(_NUMBERS.get(int(each)) if isinstance(each, int | float) else each)
        if name == "number":
            names |= {"int", "long", "double", "decimal"}
        elif name in _NUMBERS.values():
            names.add(name)
        else:
            raise bad_value(f"Unknown type name alias: {each}")
    if type_name(value) in names:
        return True
    return isinstance(value, list) and any(type_name(item) in names for item in value)
