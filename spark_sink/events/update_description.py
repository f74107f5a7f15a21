"""Applies an update description to the document from before the update.

It lists the fields that were set, the fields that were removed, and the arrays that were truncated,
each by a dotted path (MongoDB's manual, "update" event). All paths are those of the document before
the update: a description never sets a field and a path into it. A number in a path is an index if
the document has an array there, and a field's name otherwise.

Names may contain dots, too. Then `disambiguatedPaths` has the parts of a path
(`spark_sink.events.update_events`). In a description without that field a path with a dot may have
several meanings: a new field may have any name. Such a path is refused unless the document leaves
it one meaning.

A name may occur twice in a document. Servers set the first such field. They do not tell whether
they have removed the first one or all of them, so that is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import bson

from spark_sink.events.slices import (
    CODEC,
    DOCUMENT,
    NULL,
    STRING,
    Slice,
    array_of,
    document_slice,
    elements_of,
    fields_of,
)
from spark_sink.events.update_events import PATHS

_PATHS = PATHS.decode()
_NOTHING = object()
Document = dict[Any, Any]


def updated(document: bytes, description: bytes) -> bytes:
    """Return the document after the update, both as BSON; what it leaves alone stays as it is.

    Raises ValueError if a path does not fit the document, or has several meanings; and InvalidBSON.
    """
    before, update = bson.decode(document, CODEC), bson.decode(description, CODEC)
    # pymongo lacks some types of BSON, makes references of documents with $ref, and keeps one of
    # two fields with the same name.
    plain = ((document, before), (description, update))
    if all(b"$ref\0" not in data and bson.encode(value) == data for data, value in plain):
        return bson.encode(_Update.of(update).applied(before))
    parts = _parts_of(Slice(DOCUMENT, document))
    return _slice_of(_Update.of_bson(fields_of(description)).applied(parts)).value


def _parts_of(value: Slice) -> Any:
    """Return documents and arrays as dict and list, and other values as they are in BSON.

    The second field of one name has the key `(name, 1)`, the third one `(name, 2)`.
    """
    if not value.is_nested:
        return value
    elements = [(_text(name), _parts_of(each)) for name, each in elements_of(value.value)]
    if value.kind != DOCUMENT:
        return [each for _, each in elements]
    times: Counter[str] = Counter()
    parts: Document = {}
    for name, each in elements:
        parts[(name, times[name]) if name in parts else name] = each
        times[name] += 1
    return parts


def _slice_of(parts: Any) -> Slice:
    """Return what `_parts_of` has divided, as BSON."""
    if isinstance(parts, list):
        return array_of(map(_slice_of, parts))
    if not isinstance(parts, dict):
        return Slice(NULL, b"") if parts is None else parts
    names = (each if isinstance(each, str) else each[0] for each in parts)
    encoded = (name.encode(errors="surrogateescape") for name in names)
    return document_slice(zip(encoded, map(_slice_of, parts.values()), strict=True))


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


@dataclass
class _Update:
    """A description: paths with values, paths, paths with lengths, and the names in paths.

    A path that occurs twice has names for each, in the order of the first three. If `names` is
    None, a path may have several meanings.
    """

    updated: Iterable[tuple[str, Any]]
    removed: Iterable[str]
    truncated: Iterable[tuple[str, int]]
    names: dict[str, list[Sequence[str]]] | None

    @classmethod
    def of(cls, update: Mapping[str, Any]) -> _Update:
        """Return a decoded description, in which no path occurs twice."""
        names = update.get(_PATHS)
        return cls(
            (update.get("updatedFields") or {}).items(),
            update.get("removedFields") or (),
            [(each["field"], each["newSize"]) for each in update.get("truncatedArrays") or ()],
            None if names is None else {path: [[*map(str, n)]] for path, n in names.items()},
        )

    @classmethod
    def of_bson(cls, update: Mapping[bytes, Slice]) -> _Update:
        """Return any description. Raises InvalidBSON."""

        def elements(name: bytes) -> list[tuple[bytes, Slice]]:
            found = update.get(name)
            return elements_of(found.value) if found is not None and found.is_nested else []

        def string(value: Slice) -> str:
            return _text(value.value[4:-1])

        names: dict[str, list[Sequence[str]]] = {}
        for path, parts in elements(PATHS):
            found = (each for _, each in elements_of(parts.value))
            names.setdefault(_text(path), []).append(
                [string(e) if e.kind == STRING else str(e.whole_number()) for e in found]
            )
        truncated = (fields_of(each.value) for _, each in elements(b"truncatedArrays"))
        return cls(
            [(_text(path), _parts_of(value)) for path, value in elements(b"updatedFields")],
            [string(each) for _, each in elements(b"removedFields")],
            [(string(e[b"field"]), e[b"newSize"].whole_number() or 0) for e in truncated],
            names if PATHS in update else None,
        )

    def applied(self, document: Document) -> Document:
        """Change a document in place, and return it. Raises ValueError.

        Truncations come before the fields that are set, which may lie behind the new end.
        """
        updated = [(self._place(document, path), value) for path, value in self.updated]
        removed = [self._place(document, path, _exists) for path in self.removed]
        truncated = [
            (self._place(document, path, partial(_is_longer, size)), size)
            for path, size in self.truncated
        ]
        for (parent, name), size in truncated:
            array = _child(parent, name)
            if isinstance(array, list):
                del array[size:]
        for parent, name in removed:
            if isinstance(parent, dict):
                if (name, 1) in parent:
                    raise ValueError(
                        f"the field {name} occurs twice, and the event does not tell which of them "
                        "was removed"
                    )
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

    def _place(
        self, document: Document, path: str, fits: Callable[[Any], bool] | None = None
    ) -> tuple[Any, str]:
        """Return the document or array that has the field at a path, and its name there.

        `fits` says of a value whether it may be that of the field; without it, the field may be
        new.
        """
        if "." not in path:
            return document, path
        if self.names is None:
            meanings = [*_meanings(document, path.split("."), fits)]
            if len(meanings) > 1:
                raise ValueError(
                    f"the path {path} may stand for several fields, since names may have dots. "
                    "Remove updateDescription from option 'pipeline', so that the source can read "
                    "which field it is"
                )
            names = meanings[0] if meanings else [path]
        else:
            known = self.names.get(path)
            names = known.pop(0) if known else path.split(".")
        parent: Any = document
        for name in names[:-1]:
            parent = _child(parent, name)
            if not isinstance(parent, (dict, list)):
                raise ValueError(f"the document has no fields at the parent of {path}")
        return parent, names[-1]


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


def _child(parent: Any, name: str) -> Any:
    """Return a field of a document, or an element of an array; _NOTHING if there is none."""
    if isinstance(parent, dict):
        return parent.get(name, _NOTHING)
    if isinstance(parent, list) and name.isdecimal() and int(name) < len(parent):
        return parent[int(name)]
    return _NOTHING


def _exists(value: Any) -> bool:
    return value is not _NOTHING


def _is_longer(size: int, value: Any) -> bool:
    return isinstance(value, list) and len(value) > size
