"""Applies an update description to the document from before the update.

It lists the fields that were set, the fields that were removed, and the arrays that were truncated,
each by a dotted path (MongoDB's manual, "update" event). A number in a path is an index of an array
if the document has an array there, and a field's name otherwise. A name that contains a dot makes a
path ambiguous; `disambiguatedPaths` (with showExpandedEvents) has the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def apply_update(document: dict[str, Any], description: Mapping[str, Any]) -> dict[str, Any]:
    """Change `document` in place, and return it.

    Truncations are applied before the fields that are set, which may lie behind the new end. Raises
    ValueError if a path leads through a value without fields.
    """
    parts: Mapping[str, list[Any]] = description.get("disambiguatedPaths") or {}

    def path_of(dotted: str) -> list[Any]:
        return list(parts[dotted]) if dotted in parts else dotted.split(".")

    for truncated in description.get("truncatedArrays") or ():
        _truncate(document, path_of(truncated["field"]), truncated["newSize"])
    for dotted in description.get("removedFields") or ():
        _remove(document, path_of(dotted))
    for dotted, value in (description.get("updatedFields") or {}).items():
        _set(document, path_of(dotted), value)
    return document


def _truncate(document: Any, path: list[Any], size: int) -> None:
    array = _at(document, path)
    if isinstance(array, list):
        del array[size:]


def _remove(document: Any, path: list[Any]) -> None:
    parent = _at(document, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)


def _set(document: Any, path: list[Any], value: Any) -> None:
    parent = document
    for part in path[:-1]:
        parent = _entered(parent, part)
    if isinstance(parent, list):
        _set_item(parent, int(path[-1]), value)
    elif isinstance(parent, dict):
        parent[str(path[-1])] = value
    else:
        raise ValueError(f"no fields at {'.'.join(map(str, path[:-1]))}")


def _entered(parent: Any, part: Any) -> Any:
    """Return the value in a field or at an index; a missing field becomes an empty document."""
    if isinstance(parent, list):
        index = int(part)
        if index >= len(parent):
            _set_item(parent, index, {})
        return parent[index]
    if isinstance(parent, dict):
        return parent.setdefault(str(part), {})
    raise ValueError(f"no fields at {part}")


def _set_item(array: list[Any], index: int, value: Any) -> None:
    array.extend([None] * (index + 1 - len(array)))
    array[index] = value


def _at(document: Any, path: Iterable[Any]) -> Any:
    """Return the value at a path; None if there is none."""
    for part in path:
        if isinstance(document, dict):
            document = document.get(str(part))
        elif isinstance(document, list) and str(part).isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document
