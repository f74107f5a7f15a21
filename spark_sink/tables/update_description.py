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
