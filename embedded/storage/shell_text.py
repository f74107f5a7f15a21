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
