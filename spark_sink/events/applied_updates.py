"""Applies an update description to the document from before the update.

It lists the fields that were set, the fields that were removed, and the arrays that were truncated,
each by a dotted path (MongoDB's manual, "update" event). All paths are those of the document before
the update: a description never sets a field and a path into it. A number in a path is an index if
the document has an array there, and a field's name otherwise.

Names may contain dots, too. Then `disambiguatedPaths` has the parts of a path
(`spark_sink.events.update_events`). In a description without that field a path with a dot may have
several meanings: a new field may have any name. Such a path is refused unless the document leaves
it one meaning.

A name may occur twice in a document. An event does not tell which of these fields it changes: an
operator changes the first one, and a pipeline all of them. Such a path is refused, too. Fields
beside it stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import bson

from shard_client.bson.values import DOCUMENT, NULL
from spark_sink.events.slices import CODEC, Slice, array_of, document_slice, elements_of, fields_of
from spark_sink.events.update_events import Part, Paths

_NOTHING = object()
Document = dict[Any, Any]


def updated(document: bytes, description: bytes) -> bytes:
    """Return the document after the update, as BSON; the bytes of other fields stay the same.

    Raises ValueError if a path does not fit the document, or has several meanings; and InvalidBSON.
    """
    before, update = bson.decode(document, CODEC), bson.decode(description, CODEC)
    # pymongo lacks some types of BSON, makes references of documents with $ref, and keeps one of
    # two fields with the same name.
    fields = fields_of(description)
    paths = Paths(fields)
    plain = ((document, before), (description, update))
    if all(b"$ref\0" not in data and bson.encode(value) == data for data, value in plain):
        return bson.encode(_Update.of(update, paths).applied(before))
    parts = _parts_of(Slice(DOCUMENT, document))
    return _slice_of(_Update.of_bson(fields, paths).applied(parts)).value


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


def _name(part: Part) -> str:
    return _text(part) if isinstance(part, bytes) else str(part)


@dataclass
class _Update:
    """A description: paths with values, paths, and paths with lengths."""

    updated: Iterable[tuple[str, Any]]
    removed: Iterable[str]
    truncated: Iterable[tuple[str, int]]
    paths: Paths

    @classmethod
    def of(cls, update: Mapping[str, Any], paths: Paths) -> _Update:
        """Return a decoded description, in which no path occurs twice."""
        return cls(
            (update.get("updatedFields") or {}).items(),
            update.get("removedFields") or (),
            [(each["field"], each["newSize"]) for each in update.get("truncatedArrays") or ()],
            paths,
        )

    @classmethod
    def of_bson(cls, update: Mapping[bytes, Slice], paths: Paths) -> _Update:
        """Return any description. Raises InvalidBSON."""

        def elements(name: bytes) -> list[tuple[bytes, Slice]]:
            found = update.get(name)
            return elements_of(found.value) if found is not None and found.is_nested else []

        def string(value: Slice) -> str:
            return _text(value.value[4:-1])

        truncated = (fields_of(each.value) for _, each in elements(b"truncatedArrays"))
        return cls(
            [(_text(path), _parts_of(value)) for path, value in elements(b"updatedFields")],
            [string(each) for _, each in elements(b"removedFields")],
            [(string(e[b"field"]), e[b"newSize"].whole_number() or 0) for e in truncated],
            paths,
        )

    def applied(self, document: Document) -> Document:
        """Change a document in place, and return it. Raises ValueError.

        Truncations come before the fields that are set, which may lie after the new end.
        """
        updated = [(self._target(document, path), value) for path, value in self.updated]
        removed = [self._target(document, path, _exists) for path in self.removed]
        truncated = [
            (self._target(document, path, partial(_is_longer, size)), size)
            for path, size in self.truncated
        ]
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
        self, document: Document, path: str, fits: Callable[[Any], bool] | None = None
    ) -> tuple[Any, str]:
        """Return the document or array that has the field at a path, and its name there.

        `fits` returns whether the field may have a value. Without `fits` the field may be missing.
        """
        names = self._names(document, path, fits)
        parent: Any = document
        for name in names[:-1]:
            _require_one(parent, name)
            parent = _child(parent, name)
            if not isinstance(parent, (dict, list)):
                raise ValueError(f"the document has no fields at the parent of {path}")
        _require_one(parent, names[-1])
        return parent, names[-1]

    def _names(
        self, document: Document, path: str, fits: Callable[[Any], bool] | None
    ) -> Sequence[str]:
        if "." not in path:
            return [path]
        if self.paths.are_exact:
            known = self.paths.parts(path.encode(errors="surrogateescape"))
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


def _exists(value: Any) -> bool:
    return value is not _NOTHING


def _is_longer(size: int, value: Any) -> bool:
    return isinstance(value, list) and len(value) > size
