"""Values as the server prints them inside error messages.

Two styles occur: with spaces inside the braces (BSON) and without (documents of the aggregation).
"""

from collections.abc import Mapping
from typing import Any

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp


def bson_text(value: Any) -> str:
    """Return ``value`` as in ``{ a: 1, b: "x" }``."""
    return _text(value, " ")


def document_text(value: Any) -> str:
    """Return ``value`` as in ``{a: 1, b: "x"}``."""
    return _text(value, "")


def _text(value: Any, pad: str) -> str:
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        inner = ", ".join(f"{name}: {_text(item, pad)}" for name, item in value.items())
        return "{" + pad + inner + pad + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_text(item, pad) for item in value)
        return "[" + pad + inner + pad + "]" if value else "[]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if value is None:
        return "null"
    if isinstance(value, Timestamp):
        return f"Timestamp({value.time}, {value.inc})"
    if isinstance(value, ObjectId):
        return f"ObjectId('{value}')"
    if isinstance(value, Binary) and value.subtype == 4:
        return f'UUID("{value.as_uuid()}")'
    return str(value)


TYPE_NAMES: dict[str, str] = {
    "float": "double",
    "str": "string",
    "bytes": "binData",
    "Binary": "binData",
    "UUID": "binData",
    "ObjectId": "objectId",
    "bool": "bool",
    "datetime": "date",
    "DatetimeMS": "date",
    "NoneType": "null",
    "Regex": "regex",
    "Code": "javascript",
    "Int64": "long",
    "int": "int",
    "Timestamp": "timestamp",
    "Decimal128": "decimal",
    "MinKey": "minKey",
    "MaxKey": "maxKey",
    "list": "array",
    "tuple": "array",
}


def type_name(value: Any) -> str:
    """Return the server's name for ``value``'s BSON type."""
    if isinstance(value, Mapping):
        return "object"
    name = type(value).__name__
    if name == "int" and not -(1 << 31) <= value < 1 << 31:
        return "long"
    return TYPE_NAMES.get(name, name)
