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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import bson

from shard_client.bson.values import DOCUMENT, NULL, STRING
from spark_sink.events.slices import CODEC, Slice, array_of, document_slice, elements_of, fields_of
from spark_sink.events.update_descriptions import Part, Paths

_NOTHING = object()
Document = dict[Any, Any]


def updated(document: bytes, description: bytes) -> bytes:
    """Return the document after the update, as BSON; the bytes of other fields stay the same.

    Raises ValueError if a path does not fit the document, or has several meanings; and InvalidBSON.
    """
    before, update = bson.decode(document, CODEC), bson.decode(description, CODEC)
    # pymongo lacks some types of BSON, makes references of documents with $ref, and keeps one of
    # two fields with the same name.
    paths = Paths(fields_of(description))
    plain = ((document, before), (description, update))
    if all(b"$ref\0" not in data and bson.encode(value) == data for data, value in plain):
        return bson.encode(_applied(before, update, paths))
    parts, update = (_parts_of(Slice(DOCUMENT, data)) for data in (document, description))
    return _slice_of(_applied(parts, update, paths)).value


def _parts_of(value: Slice) -> Any:
    """Return documents and arrays as dict and list, and other values as they are in BSON.

    The second field of one name has the key `(name, 1)`, the third one `(name, 2)`.
    """
    if not value.is_nested:
        return value
    elements = [(_text(name), _parts_of(element)) for name, element in elements_of(value.value)]
    if value.kind != DOCUMENT:
        return [element for _, element in elements]
    times: Counter[str] = Counter()
    parts: Document = {}
    for name, element in elements:
        parts[(name, times[name]) if name in parts else name] = element
        times[name] += 1
    return parts


def _slice_of(parts: Any) -> Slice:
    """Return what `_parts_of` has divided, as BSON."""
    if isinstance(parts, list):
        return array_of(map(_slice_of, parts))
    if not isinstance(parts, dict):
        return Slice(NULL, b"") if parts is None else parts
    names = (key if isinstance(key, str) else key[0] for key in parts)
    encoded = (name.encode(errors="surrogateescape") for name in names)
    return document_slice(zip(encoded, map(_slice_of, parts.values()), strict=True))


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _name(part: Part) -> str:
    return _text(part) if isinstance(part, bytes) else str(part)


def _plain(value: Any) -> Any:
    """Return a path or a length of a description, which may be as it is in BSON."""
    if not isinstance(value, Slice):
        return value
    return _text(value.value[4:-1]) if value.kind == STRING else value.whole_number() or 0


def _applied(document: Document, update: Document, paths: Paths) -> Document:
    """Change a document in place, and return it. Raises ValueError.

    Both are decoded, or both are as `_parts_of` divides them. Truncations come before the fields
    that are set, which may lie after the new end.
    """
    fields: Any
    fields, removals, arrays = (
        part if isinstance(part := update.get(name), (dict, list)) else {}
        for name in ("updatedFields", "removedFields", "truncatedArrays")
    )
    target = partial(_target, document, paths)
    updated = [
        (target(path if isinstance(path, str) else path[0]), value)
        for path, value in fields.items()
    ]
    removed = [target(_plain(path), lambda value: value is not _NOTHING) for path in removals]
    sized = [(_plain(array["field"]), _plain(array["newSize"])) for array in arrays]
    truncated = [(target(path, partial(_is_longer, size)), size) for path, size in sized]
    for (parent, name), size in truncated:
        array = _child(parent, name)
        if isinstance(array, list):
            del array[size:]
    for parent, name in removed:
        if isinstance(parent, dict):
            parent.pop(name, None)
    for (parent, name), value in updated:
        if isinstance(parent, dict):
            parent[name] = value
            continue
        if not name.isdecimal():
            raise ValueError(f"an array has no field {name}")
        parent.extend([None] * (int(name) + 1 - len(parent)))
        parent[int(name)] = value
    return document


def _target(
    document: Document, paths: Paths, path: str, fits: Callable[[Any], bool] | None = None
) -> tuple[Any, str]:
    """Return the document or array that has the field at a path, and its name there.

    `fits` returns whether the field may have a value. Without `fits` the field may be missing.
    """
    names = _names(document, paths, path, fits)
    parent: Any = document
    for name in names[:-1]:
        _require_one(parent, name)
        parent = _child(parent, name)
        if not isinstance(parent, (dict, list)):
            raise ValueError(f"the document has no fields at the parent of {path}")
    _require_one(parent, names[-1])
    return parent, names[-1]


def _names(
    document: Document, paths: Paths, path: str, fits: Callable[[Any], bool] | None
) -> Sequence[str]:
    """Return the names of the fields, from the outermost one on, that a path stands for."""
    if "." not in path:
        return [path]
    if paths.are_exact:
        known = paths.parts(path.encode(errors="surrogateescape"))
        return path.split(".") if known is None else list(map(_name, known))
    meanings = [*islice(_meanings(document, path.split("."), fits), 2)]
    if len(meanings) > 1:
        raise ValueError(
            f"the path {path} may stand for several fields, since names may have dots. Remove "
            "updateDescription from option 'pipeline', so that the source can read which it is"
        )
    return meanings[0] if meanings else [path]


def _meanings(
    document: Any, parts: Sequence[str], fits: Callable[[Any], bool] | None
) -> Iterator[Sequence[str]]:
    """Return the names of the fields, from the outermost on, that a path may stand for."""
    is_array = isinstance(document, list)
    for length in range(1, len(parts) if not is_array else 2):
        name = ".".join(parts[:length])
        inner = _child(document, name)
        if length < len(parts) and isinstance(inner, (dict, list)):
            for names in _meanings(inner, parts[length:], fits):
                yield [name, *names]
    whole = ".".join(parts)
    may_be_new = fits is None and (not is_array or whole.isdecimal())
    if may_be_new or (fits is not None and fits(_child(document, whole))):
        yield [whole]


def _require_one(parent: Any, name: str) -> None:
    if isinstance(parent, dict) and (name, 1) in parent:
        raise ValueError(f"the field {name} occurs twice, and the event does not tell which it is")


def _child(parent: Any, name: str) -> Any:
    """Return a field of a document, or an element of an array; _NOTHING if there is none."""
    if isinstance(parent, dict):
        return parent.get(name, _NOTHING)
    if isinstance(parent, list) and name.isdecimal() and int(name) < len(parent):
        return parent[int(name)]
    return _NOTHING


def _is_longer(size: int, value: Any) -> bool:
    return isinstance(value, list) and len(value) > size
