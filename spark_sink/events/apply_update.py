"""Applies an update description to the document from before the update.

It lists the fields that were set, the fields that were removed, and the arrays that were truncated,
each by a dotted path (MongoDB's manual, "update" event). All paths are those of the document before
the update: a description never sets a field and a path into it. A number in a path is an index if
the document has an array there, and a field's name otherwise.

Names may contain dots, too. Then `disambiguatedPaths` has the parts of a path
(`spark_sink.events.update_descriptions`). In a description without that field a path with a dot may
have several meanings: a new field may have any name. Such a path is refused unless the document
leaves it one meaning.

A name may occur twice in a document. An event does not tell which of these fields it changes: an
operator changes the first one, and a pipeline all of them. Such a path is refused, too. Fields
beside it stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from shard_client.bson.values import DOCUMENT
from spark_sink.events.slices import (
    NOTHING,
    Slice,
    array_of,
    document_slice,
    elements_of,
    fields_of,
)
from spark_sink.events.update_descriptions import Paths

_NOTHING = object()
Parent = dict[Any, Any] | list[Any]
"""A document or an array that is divided: its values are slices, or divided as well.

The second field of one name has the key `(name, 1)`, the third one `(name, 2)`.
"""


def updated(document: bytes, description: bytes) -> bytes:
    """Return the document after the update, as BSON; the bytes of other fields stay the same.

    Raises ValueError if a path does not fit the document, or has several meanings; and InvalidBSON.
    """
    update = fields_of(description)
    root = _divided(Slice(DOCUMENT, document))
    target = partial(_target, root, Paths(update))
    fields = [(target(path), value) for path, value in _elements(update, b"updatedFields")]
    removed = [target(path.string(), _exists) for _, path in _elements(update, b"removedFields")]
    truncated = []
    for _, array in _elements(update, b"truncatedArrays"):
        change = array.fields()
        size = change[b"newSize"].whole_number() or 0
        truncated.append((target(change[b"field"].string(), partial(_is_longer, size)), size))
    # Before the fields that are set, which may lie after the new end.
    for (parent, name), size in truncated:
        found = _child(parent, name)
        if isinstance(found, list):
            del found[size:]
    for parent, name in removed:
        if isinstance(parent, dict):
            parent.pop(name, None)
    for (parent, name), value in fields:
        if isinstance(parent, dict):
            parent[name] = value
            continue
        if not name.isdigit():
            raise ValueError(f"an array has no field {_text(name)}")
        parent.extend([NOTHING] * (int(name) + 1 - len(parent)))
        parent[int(name)] = value
    return _joined(root).value


def _elements(update: Mapping[bytes, Slice], name: bytes) -> list[tuple[bytes, Slice]]:
    value = update.get(name, NOTHING)
    return elements_of(value.value) if value.is_nested else []


def _divided(value: Slice) -> Parent:
    elements = elements_of(value.value)
    if value.kind != DOCUMENT:
        return [element for _, element in elements]
    document: dict[Any, Any] = dict(elements)
    if len(document) == len(elements):
        return document
    document.clear()
    times: Counter[bytes] = Counter()
    for name, element in elements:
        document[(name, times[name]) if name in document else name] = element
        times[name] += 1
    return document


def _joined(value: Any) -> Slice:
    """Return what `_divided` has divided, as BSON."""
    if isinstance(value, Slice):
        return value
    if isinstance(value, list):
        return array_of(map(_joined, value))
    names = (key if isinstance(key, bytes) else key[0] for key in value)
    return document_slice(zip(names, map(_joined, value.values()), strict=True))


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _target(
    root: Parent, paths: Paths, path: bytes, fits: Callable[[Any], bool] | None = None
) -> tuple[Any, bytes]:
    """Return the document or array that has the field at a path, and its name there.

    `fits` returns whether the field may have a value. Without `fits` the field may be missing.
    """
    names = _names(root, paths, path, fits)
    parent: Any = root
    for name in names[:-1]:
        _require_one(parent, name)
        parent = _child(parent, name)
        if not isinstance(parent, (dict, list)):
            raise ValueError(f"the document has no fields at the parent of {_text(path)}")
    _require_one(parent, names[-1])
    return parent, names[-1]


def _names(
    root: Parent, paths: Paths, path: bytes, fits: Callable[[Any], bool] | None
) -> Sequence[bytes]:
    """Return the names of the fields, from the outermost one on, that a path stands for."""
    if b"." not in path:
        return [path]
    if paths.are_exact:
        known = paths.parts(path)
        if known is None:
            return path.split(b".")
        return [part if isinstance(part, bytes) else b"%d" % part for part in known]
    meanings = [*islice(_meanings(root, path.split(b"."), fits), 2)]
    if len(meanings) > 1:
        raise ValueError(
            f"the path {_text(path)} may stand for several fields, since names may have dots. "
            "Remove updateDescription from option 'pipeline', so that the source can read which it "
            "is"
        )
    return meanings[0] if meanings else [path]


def _meanings(
    parent: Any, parts: Sequence[bytes], fits: Callable[[Any], bool] | None
) -> Iterator[Sequence[bytes]]:
    """Return the names of the fields, from the outermost on, that a path may stand for."""
    is_array = isinstance(parent, list)
    for length in range(1, len(parts) if not is_array else 2):
        name = b".".join(parts[:length])
        inner = _child(parent, name)
        if length < len(parts) and isinstance(inner, (dict, list)):
            for names in _meanings(inner, parts[length:], fits):
                yield [name, *names]
    whole = b".".join(parts)
    may_be_new = fits is None and (not is_array or whole.isdigit())
    if may_be_new or (fits is not None and fits(_child(parent, whole))):
        yield [whole]


def _require_one(parent: Any, name: bytes) -> None:
    if isinstance(parent, dict) and (name, 1) in parent:
        raise ValueError(
            f"the field {_text(name)} occurs twice, and the event does not tell which it is"
        )


def _child(parent: Any, name: bytes) -> Any:
    """Return a field of a document, or an element of an array; _NOTHING if there is none.

    A document or an array is divided, and remains so in its parent.
    """
    key: Any = name
    if isinstance(parent, list):
        key = int(name) if name.isdigit() and int(name) < len(parent) else None
    if key is None or (isinstance(parent, dict) and key not in parent):
        return _NOTHING
    value = parent[key]
    if isinstance(value, Slice) and value.is_nested:
        value = parent[key] = _divided(value)
    return value


def _exists(value: Any) -> bool:
    return value is not _NOTHING


def _is_longer(size: int, value: Any) -> bool:
    return isinstance(value, list) and len(value) > size
