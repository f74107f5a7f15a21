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
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from spark_sink.events.header import namespace_of
from spark_sink.events.runs import Run
from spark_sink.events.slices import ARRAY, DOCUMENT, STRING, Slice, document_of, fields_of

_INT = struct.Struct("<i")
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
        found = {name: self._described_part(name, value) for name, value in fields.items()}
        return description if found == fields else _document(found.items())

    def _described_part(self, name: bytes, part: Slice) -> Slice:
        if name == b"updatedFields" and part.kind == DOCUMENT:
            return _document(self._updated(fields_of(part.value)))
        if name == b"removedFields" and part.kind == ARRAY:
            paths = (_text(each) for each in fields_of(part.value).values())
            kept = (self._path(path)[0] for path in paths)
            return _array(_string(path) for path in kept if path is not None)
        if name == b"truncatedArrays" and part.kind == ARRAY:
            return _array(self._truncated(fields_of(part.value).values()))
        if name == b"disambiguatedPaths" and part.kind == DOCUMENT:
            return _document(self._disambiguated(fields_of(part.value)))
        return part

    def _updated(self, fields: dict[bytes, Slice]) -> Iterator[tuple[bytes, Slice]]:
        for dotted, value in fields.items():
            path, within = self._path(dotted)
            if path is not None:
                yield path, _edited(value, within, self._new) if within else value

    def _truncated(self, arrays: Iterable[Slice]) -> Iterator[Slice]:
        for each in arrays:
            fields = fields_of(each.value)
            path, _ = self._path(_text(fields[b"field"]))
            if path is not None:
                yield _document({**fields, b"field": _string(path)}.items())

    def _disambiguated(self, fields: dict[bytes, Slice]) -> Iterator[tuple[bytes, Slice]]:
        for dotted, parts in fields.items():
            path, _ = self._path(dotted)
            if path == dotted:
                yield dotted, parts
            elif path is not None:
                new, old = path.split(b"."), list(fields_of(parts.value).values())
                pairs = zip(old, new, strict=True)
                yield path, _array(_string(name) if each.kind == STRING else each
                                   for each, name in pairs)  # fmt: skip

    def _path(self, dotted: bytes) -> tuple[bytes | None, _Path]:
        """Return a dotted path of a description with this edit, None if it is left out.

        Also return the rest of this edit's path, which lies within the path's value: empty unless
        the path is the beginning of this edit's. Numbers in a path may be indexes of arrays.
        """
        names, parts = self._names, dotted.split(b".")
        found = 0
        for index, part in enumerate(parts):
            if part == names[found]:
                found += 1
                if found == len(names):
                    if self._new is None:
                        return None, ()
                    return b".".join([*parts[:index], self._new, *parts[index + 1 :]]), ()
            elif not part.isdigit() or found == 0:
                return dotted, ()
        return dotted, names[found:]


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
    if value.kind not in (DOCUMENT, ARRAY):
        return value
    fields = fields_of(value.value)
    if value.kind == ARRAY:
        found = {name: _edited(each, path, new) for name, each in fields.items()}
        return value if found == fields else Slice(ARRAY, document_of(found.items()))
    name, *rest = path
    if name not in fields:
        return value
    if rest:
        inner = _edited(fields[name], tuple(rest), new)
        if inner == fields[name]:
            return value
        return _document({**fields, name: inner}.items())
    if new is None:
        return _document((each, kept) for each, kept in fields.items() if each != name)
    others = ((each, kept) for each, kept in fields.items() if each != new or each == name)
    return _document((new if each == name else each, kept) for each, kept in others)


def _document(fields: Iterable[tuple[bytes, Slice]]) -> Slice:
    return Slice(DOCUMENT, document_of(fields))


def _array(values: Iterable[Slice]) -> Slice:
    fields = ((str(index).encode(), each) for index, each in enumerate(values))
    return Slice(ARRAY, document_of(fields))


def _string(text: bytes) -> Slice:
    return Slice(STRING, _INT.pack(len(text) + 1) + text + b"\0")


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
