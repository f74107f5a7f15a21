"""Dataclasses as JSON documents: in offsets, in the commits of tables, and in reports of tasks.

A field has its own name in camel case, and is left out while it has its default value. Its metadata
may say how a value is written (`stored`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from bson.timestamp import Timestamp

from spark_sink.events.positions import (
    AtTime,
    FromNow,
    Position,
    Token,
    position_document,
    position_from,
    time_document,
    time_from,
)

_Kind = TypeVar("_Kind")


def stored(write: Callable[[Any], Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the metadata of a field: how its value is written and read."""
    return {"write": write, "read": read}


def tagged(*kinds: type) -> dict[str, Any]:
    """Return the metadata of a field whose value is of one of several dataclasses."""
    by_name = {kind.__name__: kind for kind in kinds}

    def read(document: Any) -> Any:
        ((name, content),) = document.items()
        if name not in by_name:
            raise NewerVersionError(name)
        return from_document(by_name[name], content)

    return stored(lambda value: {type(value).__name__: to_document(value)}, read)


def to_document(value: Any) -> Any:
    """Return a value for json.dumps."""
    match value:
        case Timestamp():
            return time_document(value)
        case Token() | AtTime() | FromNow():
            return position_document(value)
        case bytes():
            return value.hex()
        case Mapping():
            return {name: to_document(item) for name, item in value.items()}
        case list() | tuple():
            return list(map(to_document, value))
    if not is_dataclass(value):
        return value
    document = {}
    for field in fields(value):
        content = getattr(value, field.name)
        if content != _default(field):
            write = field.metadata.get("write") or to_document
            document[_name(field)] = None if content is None else write(content)
    return document


class NewerVersionError(ValueError):
    """A document has a field or a kind that only a newer version of this package knows."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a newer version of mergerouter has written the field {name!r}: run that version, or "
            "a newer one"
        )


def from_document(kind: type[_Kind], document: Any) -> _Kind:
    """Return the value of a dataclass that `to_document` wrote.

    Raises NewerVersionError for a field that the dataclass does not have, and KeyError, TypeError
    or ValueError for anything else that is not a value's document.
    """
    arguments, known = {}, _fields(cast("Any", kind))
    for name, (field, read) in known.items():
        if name in document:
            content = document[name]
            arguments[field.name] = None if content is None else read(content)
    value = kind(**arguments)
    if unknown := sorted(document.keys() - known):
        raise NewerVersionError(unknown[0])
    return value


def to_json(value: Any) -> str:
    """Return a dataclass as JSON."""
    return json.dumps(to_document(value))


def from_json(kind: type[_Kind], text: str) -> _Kind:
    """Return what `to_json` wrote."""
    return from_document(kind, json.loads(text))


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


@lru_cache
def _fields(kind: Any) -> dict[str, tuple[Field[Any], Callable[[Any], Any]]]:
    """Return the fields of a dataclass by their names in documents, and what reads each."""
    hints = get_type_hints(kind)
    declared: Any = fields(kind)
    return {_name(f): (f, f.metadata.get("read") or _reader(hints[f.name])) for f in declared}


def _name(field: Field[Any]) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), field.name)


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return what reads values of a type."""
    if hint is Timestamp:
        return time_from
    if hint is bytes:
        return bytes.fromhex
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(from_document, hint)
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if isinstance(hint, UnionType):
        if kinds == [*get_args(Position)]:
            return position_from
        (only,) = kinds  # a union of others is `tagged`
        return _reader(only)
    if get_origin(hint) in (dict, Mapping):
        each_of = _reader(kinds[1])
        return lambda document: {name: each_of(value) for name, value in document.items()}
    if get_origin(hint) in (list, tuple):
        make = get_origin(hint)
        if make is tuple and Ellipsis not in kinds:
            return tuple
        element = _reader(kinds[0])
        return lambda documents: make(map(element, documents))
    return lambda document: document
