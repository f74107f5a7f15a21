"""Fields that a query leaves out or renames: Debezium's field.exclude.list and field.renames.

An entry is `database.collection.field.nested`, in which `*` stands for any characters of the
database's or the collection's name, whose case does not count; an entry of field.renames ends in
`:newName`, the new name of its last field. It also applies to documents in arrays. Tasks edit the
events before they make rows of them: the documents before and after the change, and the update
description. The document key is not edited, because it identifies the document. All other bytes are
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from shard_client.bson.values import ARRAY, DOCUMENT, STRING
from spark_sink.events.header import namespace_of
from spark_sink.events.runs import Run
from spark_sink.events.slices import (
    Slice,
    array_of,
    document_of,
    document_slice,
    elements_of,
    fields_of,
    string_of,
)
from spark_sink.events.update_events import PATHS, Parts, Paths, listed, path_of

_DOCUMENTS = (b"fullDocument", b"fullDocumentBeforeChange")
_DESCRIPTION = b"updateDescription"
_Path = tuple[bytes, ...]


@dataclass(frozen=True)
class FieldEdit:
    """One entry of a list: names with `*` for any characters, and the path of a field.

    `renamed` is the new name of the last field, None to leave it out.
    """

    database: str
    collection: str
    path: tuple[str, ...]
    renamed: str | None = None

    def concerns(self, database: str | None, collection: str | None) -> bool:
        """Return whether the entry applies to a collection.

        All entries apply to events without a namespace, such as later fragments of a split event.
        """
        return (database is None or _matches(self.database, database)) and (
            collection is None or _matches(self.collection, collection)
        )

    @cached_property
    def _names(self) -> _Path:
        return tuple(name.encode() for name in self.path)

    @cached_property
    def _new(self) -> bytes | None:
        return None if self.renamed is None else self.renamed.encode()

    def edited(self, value: Slice) -> Slice:
        """Return a document with this edit. Raises InvalidBSON."""
        return _edited(value, self._names, self._new)

    def described(self, description: Slice) -> Slice:
        """Return an update description with this edit. Raises InvalidBSON."""
        if description.kind != DOCUMENT:
            return description
        fields = fields_of(description.value)
        paths = Paths(fields)
        kept: list[tuple[bytes, Parts]] = []

        def edited(dotted: bytes) -> tuple[bytes | None, _Path]:
            known = paths.parts(dotted)
            parts = known or _divided(dotted)
            path, within = self._path(parts)
            if path is None:
                return None, ()
            if known is not None:
                kept.append((path_of(path), path))
            return path_of(path), within

        found = {
            **self._described_fields(fields, edited),
            **({PATHS: listed(kept)} if paths.are_exact else {}),
        }
        return description if found == fields else document_slice(found.items())

    def _described_fields(
        self, fields: Mapping[bytes, Slice], edited: Callable[[bytes], tuple[bytes | None, _Path]]
    ) -> dict[bytes, Slice]:
        """Return the fields of a description, the paths of which are edited in their order."""
        found = dict(fields)
        updates, removals, arrays = (
            elements_of(found[name].value) if name in found and found[name].is_nested else None
            for name in (b"updatedFields", b"removedFields", b"truncatedArrays")
        )
        if updates is not None:
            kept = []
            for dotted, value in updates:
                path, within = edited(dotted)
                if path is not None:
                    kept.append((path, _edited(value, within, self._new) if within else value))
            found[b"updatedFields"] = document_slice(kept)
        if removals is not None:
            left = [edited(_text(each))[0] for _, each in removals]
            found[b"removedFields"] = array_of(string_of(e) for e in left if e is not None)
        if arrays is not None:
            truncated = []
            for _, each in arrays:
                array = fields_of(each.value)
                path, _ = edited(_text(array[b"field"]))
                if path is not None:
                    truncated.append(document_slice({**array, b"field": string_of(path)}.items()))
            found[b"truncatedArrays"] = array_of(truncated)
        return found

    def _path(self, parts: Parts) -> tuple[Parts | None, _Path]:
        """Return a path of a description with this edit, None if it is left out.

        Also return the rest of this edit's path, which lies within the path's value: empty unless
        the path is the beginning of this edit's. Elements of arrays are edited, too.
        """
        names = self._names
        found = 0
        for index, part in enumerate(parts):
            if part == names[found]:
                found += 1
                if found == len(names):
                    if self._new is None:
                        return None, ()
                    return (*parts[:index], self._new, *parts[index + 1 :]), ()
            elif isinstance(part, bytes) or found == 0:
                return parts, ()
        return parts, names[found:]


def _divided(dotted: bytes) -> Parts:
    """Return the parts of a path at its dots: names, of which numbers behind one are indexes."""
    first, *others = dotted.split(b".")
    return (first, *(int(each) if each.isdigit() else each for each in others))


class FieldEdits:
    """The edits of a query, each of which applies to the result of those before it."""

    def __init__(self, edits: Iterable[FieldEdit]) -> None:
        self._edits = tuple(edits)
        self._chosen: dict[tuple[str | None, str | None], tuple[FieldEdit, ...]] = {}

    def runs(self, runs: Iterable[Run]) -> Iterable[Run]:
        """Return runs with their events edited. Raises InvalidBSON while they are read."""
        if not self._edits:
            return runs
        return (Run(run.keys, list(map(self.event, run.events))) for run in runs)

    def event(self, event: bytes) -> bytes:
        """Return an event with the edits of its collection. Raises InvalidBSON."""
        fields = fields_of(event)
        _, database, collection = namespace_of(fields.get(b"ns"))
        edits = self._chosen.get((database, collection))
        if edits is None:
            edits = tuple(each for each in self._edits if each.concerns(database, collection))
            self._chosen[database, collection] = edits
        found = dict(fields)
        for edit in edits:
            for name in _DOCUMENTS:
                if name in found:
                    found[name] = edit.edited(found[name])
            if _DESCRIPTION in found:
                found[_DESCRIPTION] = edit.described(found[_DESCRIPTION])
        return event if found == fields else document_of(found.items())


def _edited(value: Slice, path: _Path, new: bytes | None) -> Slice:
    """Return a document, or an array of documents, without a field or with its new name."""
    if not value.is_nested:
        return value
    fields = elements_of(value.value)
    name, *rest = path
    if value.kind == ARRAY:
        found = [(each, _edited(inner, path, new)) for each, inner in fields]
    elif rest:
        within = tuple(rest)
        found = [(n, _edited(inner, within, new) if n == name else inner) for n, inner in fields]
    elif new is None:
        found = [each for each in fields if each[0] != name]
    elif any(each == name for each, _ in fields):
        kept = (each for each in fields if each[0] != new or new == name)
        found = [(new if each == name else each, inner) for each, inner in kept]
    else:
        return value
    return value if found == fields else Slice(value.kind, document_of(found))


def _text(value: Slice) -> bytes:
    return value.value[4:-1] if value.kind == STRING else b""


def _matches(pattern: str, name: str) -> bool:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    return re.fullmatch(expression, name, re.IGNORECASE) is not None


def excluded_fields(text: str) -> tuple[FieldEdit, ...]:
    """Debezium's field.exclude.list. Raises ValueError."""
    return tuple(_entry(each) for each in _entries(text))


def renamed_fields(text: str) -> tuple[FieldEdit, ...]:
    """Debezium's field.renames. Raises ValueError."""
    found = []
    for each in _entries(text):
        path, _, new = each.partition(":")
        if not new or "." in new or ":" in new:
            raise ValueError(f"must be database.collection.field:newName, not {each!r}")
        found.append(_entry(path, new.strip()))
    return tuple(found)


def _entries(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


def _entry(text: str, renamed: str | None = None) -> FieldEdit:
    database, *others = text.split(".")
    if not database or len(others) < 2 or not all(others):
        raise ValueError(f"must be database.collection.field, not {text!r}")
    return FieldEdit(database, others[0], tuple(others[1:]), renamed)
