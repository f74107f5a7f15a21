"""BSON values as text in mongos's messages: type names and documents."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import bson
from bson.binary import Binary
from bson.code import Code
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

_NAMES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "bool"),
    (Int64, "long"),
    (float, "double"),
    (Code, "javascript"),
    (str, "string"),
    ((Mapping, DBRef), "object"),
    ((list, tuple), "array"),
    ((bytes, Binary, UUID), "binData"),
    (ObjectId, "objectId"),
    (datetime, "date"),
    (Timestamp, "timestamp"),
    (Regex, "regex"),
    (Decimal128, "decimal"),
    (MinKey, "minKey"),
    (MaxKey, "maxKey"),
    (type(None), "null"),
)


def type_name(value: Any) -> str:
    """Return MongoDB's name for the type of a decoded BSON value."""
    if isinstance(value, Code) and value.scope is not None:
        return "javascriptWithScope"
    if type(value) is int:
        return "int" if -(2**31) <= value < 2**31 else "long"
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name
    return "date" if isinstance(value, bson.DatetimeMS) else "missing"


def render(value: Any) -> str:
    """Return a value as text in the form of aggregation messages: ``{_data: "82", n: 5}``."""
    if isinstance(value, str):
        return '"' + value + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {render(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(render, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f'BinData({getattr(value, "subtype", 0)}, "{value.hex().upper()}")'
    if isinstance(value, Timestamp):
        return f"Timestamp({value.time}, {value.inc})"
    return str(value)
