"""BSON values as text in mongos's messages: type names and documents."""

from collections.abc import Callable, Iterator, Mapping
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

LONGEST: Final = 16 * 1024
"""Most characters of a value in a message."""

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


def shortened(text: str, most: int = LONGEST) -> str:
    """Return the text, cut after ``most`` characters."""
    return text if len(text) <= most else text[:most] + "..."


def render(value: Any, scalar: Callable[[Any], str] | None = None, *, space: str = "") -> str:
    """Return a value as text in the form of aggregation messages: ``{_data: "82", n: 5}``.

    What goes beyond LONGEST characters is neither rendered nor returned. Other messages print some
    values by ``scalar``, and ``space`` inside of brackets.
    """
    parts, size = list[str](), 0
    for part in _rendered(value, scalar or plain, space):
        parts.append(part)
        size += len(part)
        if size > LONGEST:
            break
    return shortened("".join(parts))


def _rendered(value: Any, scalar: Callable[[Any], str], space: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        opening, closing = "{", "}"
        items = ((f"{name[:LONGEST]}: ", item) for name, item in value.items())
    elif isinstance(value, (list, tuple)):
        opening, closing = "[", "]"
        items = (("", item) for item in value)
    else:
        yield scalar(value)
        return
    before = opening + space
    for name, item in items:
        yield before + name
        yield from _rendered(item, scalar, space)
        before = ", "
    yield space + closing if value else opening + closing


def plain(value: Any) -> str:
    """Return a value that is no document and no array, as aggregation messages print it."""
    if isinstance(value, str):
        return f'"{shortened(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, bytes):
        shown = shortened(value[:LONGEST].hex().upper())
        return f'BinData({getattr(value, "subtype", 0)}, "{shown}")'
    if isinstance(value, Timestamp):
        return f"Timestamp({value.time}, {value.inc})"
    return str(value)
