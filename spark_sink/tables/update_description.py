"""Applies an update description to the document from before the update.

It lists the fields that were set, the fields that were removed, and the arrays that were truncated,
each by a dotted path (MongoDB's manual, "update" event). A number in a path is an index of an array
if the document has an array there, and a field's name otherwise.

Names may contain dots, too. `disambiguatedPaths` (MongoDB 6.1 with showExpandedEvents) has the
parts of such paths. Without it the document decides: a path leads through documents and arrays that
it has, since a server describes new ones as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import bson

from spark_sink.events.slices import ARRAY, CODEC, DOCUMENT, NULL, Slice, document_of, fields_of


def updated(document: bytes, description: bytes) -> bytes:
    """Return the document after the update, both as BSON; what it leaves alone stays as it is.

    Raises ValueError as `apply_update`, and InvalidBSON.
    """
    before, update = bson.decode(document, CODEC), bson.decode(description, CODEC)
    # pymongo lacks some types of BSON, and makes references of documents with $ref.
    plain = ((document, before), (description, update))
    if all(b"$ref\0" not in data and bson.encode(value) == data for data, value in plain):
        return bson.encode(apply_update(before, update))
    found = fields_of(description).get(b"updatedFields")
    exact = {} if found is None else {"updatedFields": _parts_of(found)}
    parts = apply_update(_parts_of(Slice(DOCUMENT, document)), {**update, **exact})
    return _slice_of(parts).value


def _parts_of(value: Slice) -> Any:
    """Return documents and arrays as dict and list, and other values as they are in BSON."""
    if value.kind not in (DOCUMENT, ARRAY):
        return value
    names = fields_of(value.value).items()
    parts = {name.decode(errors="surrogateescape"): _parts_of(each) for name, each in names}
    return parts if value.kind == DOCUMENT else [*parts.values()]


def _slice_of(parts: Any) -> Slice:
    """Return what `_parts_of` has divided, as BSON."""
    if isinstance(parts, list):
        named = {str(index): each for index, each in enumerate(parts)}
        return Slice(ARRAY, _slice_of(named).value)
    if not isinstance(parts, dict):
        return Slice(NULL, b"") if parts is None else parts
    names = ((name.encode(errors="surrogateescape"), each) for name, each in parts.items())
    return Slice(DOCUMENT, document_of((name, _slice_of(each)) for name, each in names))


def apply_update(document: dict[str, Any], description: Mapping[str, Any]) -> dict[str, Any]:
    """Change `document` in place, and return it.

    Truncations are applied before the fields that are set, which may lie behind the new end. Raises
    ValueError if a path does not fit the document, or if two fields fit the path.
    """
    parts: Mapping[str, Sequence[Any]] = description.get("disambiguatedPaths") or {}
    for truncated in description.get("truncatedArrays") or ():
        parent, name = _place(document, truncated["field"], parts)
        array = value_at(parent, [name])
        if isinstance(array, list):
            del array[truncated["newSize"] :]
    for dotted in description.get("removedFields") or ():
        parent, name = _place(document, dotted, parts)
        if isinstance(parent, dict):
            parent.pop(name, None)
    for dotted, value in (description.get("updatedFields") or {}).items():
        parent, name = _place(document, dotted, parts)
        if isinstance(parent, list):
            parent.extend([None] * (int(name) + 1 - len(parent)))
            parent[int(name)] = value
        else:
            parent[name] = value
    return document


def value_at(document: Any, path: Sequence[str]) -> Any:
    """Return the value at a path; None if there is none."""
    for part in path:
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def _place(
    document: dict[str, Any], dotted: str, parts: Mapping[str, Sequence[Any]]
) -> tuple[Any, str]:
    """Return the document or array that has the field at a path, and its name or index there."""
    known = dotted in parts
    path = [str(part) for part in parts[dotted]] if known else dotted.split(".")
    parent: Any = document
    while len(path) > 1:
        length = 1 if known or isinstance(parent, list) else _length(parent, path, dotted)
        if length == len(path):
            break
        parent, path = value_at(parent, [".".join(path[:length])]), path[length:]
        if not isinstance(parent, (dict, list)):
            raise ValueError(f"the document has no fields at the parent of {dotted}")
    return parent, ".".join(path)


def _length(parent: dict[str, Any], path: Sequence[str], dotted: str) -> int:
    """Return how many parts of a path are the name of the next field."""
    names = [".".join(path[:length]) for length in range(1, len(path) + 1)]
    *leading, whole = names
    fitting = [name for name in leading if isinstance(parent.get(name), (dict, list))]
    if len(fitting) + (whole in parent) > 1:
        raise ValueError(f"the path {dotted} fits two fields, since names have dots")
    return names.index((fitting or [whole])[0]) + 1
