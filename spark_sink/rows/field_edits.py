"""Fields that a query leaves out, masks or renames.

The options are Debezium's field.exclude.list and field.renames, and field.masks. An entry is
`database.collection.field.nested`, in which `*` stands for any characters of the database's or the
collection's name, whose case does not count; an entry of field.renames ends in `:newName`, the new
name of its last field, one of field.masks in `:rule`. An entry also applies to documents in arrays.
Tasks edit events before they make rows of them: the documents before and after the change, and the
update description. The document key is not edited, because it identifies the document, so no field
of it can be masked. All other bytes are unchanged.

A mask keeps documents and arrays, and replaces each value in them. So a masked update of a masked
document is the masked document after the update.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from shard_client.bson.values import ARRAY, DOCUMENT, NULL, OBJECT_ID, STRING, UNDEFINED
from spark_sink.errors import StreamError
from spark_sink.events.header import namespace_of
from spark_sink.events.runs import Run
from spark_sink.events.slices import (
    NOTHING,
    Slice,
    array_of,
    document_of,
    document_slice,
    elements_of,
    fields_of,
    string_of,
)
from spark_sink.events.update_descriptions import PATHS, Parts, Paths, listed, path_of

_DOCUMENTS = (b"fullDocument", b"fullDocumentBeforeChange")
_DESCRIPTION, _KEY = b"updateDescription", b"documentKey"
_UPDATED, _REMOVED, _TRUNCATED = b"updatedFields", b"removedFields", b"truncatedArrays"
_Path = tuple[bytes, ...]


@dataclass(frozen=True)
class Mask:
    """What replaces the values of a field: `rule` is constant, hash or truncate.

    A constant is a text. A hash is the HMAC-SHA256 with a salt, in hex digits, of the UTF-8 of a
    string, of the 24 digits of an ObjectId, or of the BSON of another value: its type and its
    bytes. A string is truncated to its first `length` characters, and another value to null. A null
    stays null.
    """

    rule: str
    text: str = ""
    length: int = 0
    salt: bytes = field(default=b"", repr=False)

    def of(self, value: Slice) -> Slice:
        """Return the value that replaces another one. Raises InvalidBSON."""
        if value.is_nested:
            masked = [(name, self.of(element)) for name, element in elements_of(value.value)]
            return Slice(value.kind, document_of(masked))
        if value.kind in (NULL, UNDEFINED):
            return NOTHING
        if self.rule == "constant":
            return string_of(self.text.encode())
        if self.rule == "hash":
            data = bytes([value.kind]) + value.value
            if value.kind in (STRING, OBJECT_ID):
                is_text = value.kind == STRING
                data = value.string() if is_text else value.value.hex().encode()
            return string_of(hmac.new(self.salt, data, "sha256").hexdigest().encode())
        if value.kind != STRING:
            return NOTHING
        text = value.string().decode(errors="surrogateescape")[: self.length]
        return string_of(text.encode(errors="surrogateescape"))


@dataclass(frozen=True)
class FieldEdit:
    """One entry of a list: names with `*` for any characters, and the path of a field.

    `mask` replaces its values. Otherwise `renamed` is the new name of the last field, None to leave
    it out.
    """

    database: str
    collection: str
    path: _Path
    renamed: bytes | None = None
    mask: Mask | None = None

    def salted(self, salt: bytes | None) -> FieldEdit:
        """Return the edit with the salt of its hashes."""
        mask = None if self.mask is None else replace(self.mask, salt=salt or b"")
        return replace(self, mask=mask)

    def meets(self, path: Sequence[bytes]) -> bool:
        """Return whether the path lies within the field of this entry, or contains it."""
        return all(a == b for a, b in zip(self.path, path, strict=False))

    def concerns(self, database: str | None, collection: str | None) -> bool:
        """Return whether the entry applies to a collection.

        All entries apply to events without a namespace, such as later fragments of a split event.
        """
        return (database is None or _matches(self.database, database)) and (
            collection is None or _matches(self.collection, collection)
        )

    def edited(self, value: Slice) -> Slice:
        """Return a document with this edit. Raises InvalidBSON."""
        return self._edited(value, self.path)

    def described(self, description: Slice) -> Slice:
        """Return an update description with this edit. Raises InvalidBSON."""
        if description.kind != DOCUMENT:
            return description
        fields = fields_of(description.value)
        paths, kept, described = Paths(fields), list[tuple[bytes, Parts]](), dict(fields)
        for name in (_UPDATED, _REMOVED, _TRUNCATED):
            if name not in fields or not fields[name].is_nested:
                continue
            left: list[tuple[bytes, Slice]] = []
            for key, value in elements_of(fields[name].value):
                array = value.fields() if name == _TRUNCATED else {}
                dotted = key if name == _UPDATED else array.get(b"field", value).string()
                known = paths.parts(dotted)
                parts = known or _divided(dotted)
                path, within = self._path(parts, is_exact=known is not None)
                if path is None:
                    continue
                new = dotted if path == parts else path_of(path)
                if known is not None:
                    kept.append((new, path))
                if name == _UPDATED:
                    left.append((new, value if within is None else self._edited(value, within)))
                else:
                    text = string_of(new)
                    whole = document_slice({**array, b"field": text}.items())
                    left.append((key, whole if array else text))
            made = [value for _, value in left]
            described[name] = document_slice(left) if name == _UPDATED else array_of(made)
        if paths.are_exact:
            described[PATHS] = listed(kept)
        return description if described == fields else document_slice(described.items())

    def _path(self, parts: Parts, *, is_exact: bool) -> tuple[Parts | None, _Path | None]:
        """Return a path of a description with this edit, None if it is left out.

        Also return the rest of this edit's path, which lies within the path's value: empty if the
        value is that of the field or of a part of it, None if neither lies within the other.
        Elements of arrays are edited, too. In a path that is not exact a number may be a name.
        """
        names = self.path
        matched = 0
        for index, part in enumerate(parts):
            name = b"%d" % part if isinstance(part, int) and not is_exact else part
            if name == names[matched]:
                matched += 1
                if matched == len(names):
                    if self.mask is not None:
                        return parts, ()
                    if self.renamed is None:
                        return None, None
                    return (*parts[:index], self.renamed, *parts[index + 1 :]), None
            elif isinstance(part, bytes) or matched == 0:
                return parts, None
        return parts, names[matched:]

    def _edited(self, value: Slice, path: _Path) -> Slice:
        """Return a value with this edit of the field at a path in it, or of all of it."""
        if not path:
            return value if self.mask is None else self.mask.of(value)
        if not value.is_nested:
            return value
        fields = elements_of(value.value)
        name, *rest = path
        if value.kind == ARRAY:
            edited = [(field, self._edited(inner, path)) for field, inner in fields]
        elif rest or self.mask is not None:
            within = tuple(rest)
            edited = [
                (n, self._edited(inner, within) if n == name else inner) for n, inner in fields
            ]
        elif self.renamed is None:
            edited = [field for field in fields if field[0] != name]
        elif any(field == name for field, _ in fields):
            new = self.renamed
            kept = (field for field in fields if field[0] != new or new == name)
            edited = [(new if field == name else field, inner) for field, inner in kept]
        else:
            return value
        return value if edited == fields else Slice(value.kind, document_of(edited))


def _divided(dotted: bytes) -> Parts:
    """Return the parts of a path at its dots: names, of which numbers after one are indexes."""
    first, *others = dotted.split(b".")
    return (first, *(int(part) if part.isdigit() else part for part in others))


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
        """Return an event with the edits of its collection.

        Raises InvalidBSON, and StreamError if it masks a field of the document's key.
        """
        fields = fields_of(event)
        _, database, collection = namespace_of(fields.get(b"ns"))
        edits = self._chosen.get((database, collection))
        if edits is None:
            edits = tuple(edit for edit in self._edits if edit.concerns(database, collection))
            self._chosen[database, collection] = edits
        edited = dict(fields)
        key = fields.get(_KEY, document_slice(()))
        for edit in edits:
            if edit.mask is not None and any(map(edit.meets, _paths_in(key))):
                raise key_is_masked(edit, f"{database}.{collection}")
            for name in _DOCUMENTS:
                if name in edited:
                    edited[name] = edit.edited(edited[name])
            if _DESCRIPTION in edited:
                edited[_DESCRIPTION] = edit.described(edited[_DESCRIPTION])
        return event if edited == fields else document_of(edited.items())


def key_is_masked(edit: FieldEdit, namespace: str) -> StreamError:
    """Return the error for a mask of a field that all events of a collection have in their keys."""
    return StreamError(
        f"option 'field.masks': {b'.'.join(edit.path).decode()} is a part of the key of the "
        f"documents of {namespace}, which every event and its token contain: it cannot be masked"
    )


def _paths_in(value: Slice, before: _Path = ()) -> Iterator[_Path]:
    """Return the paths of the values in a document, whose names may be paths."""
    if value.kind != DOCUMENT:
        yield before
        return
    for name, inner in elements_of(value.value):
        yield from _paths_in(inner, (*before, *name.split(b".")))


def _matches(pattern: str, name: str) -> bool:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    return re.fullmatch(expression, name, re.IGNORECASE) is not None


def excluded_fields(text: str) -> tuple[FieldEdit, ...]:
    """Debezium's field.exclude.list. Raises ValueError."""
    return tuple(_entry(entry) for entry in _entries(text))


def renamed_fields(text: str) -> tuple[FieldEdit, ...]:
    """Debezium's field.renames. Raises ValueError."""
    edits = []
    for entry in _entries(text):
        path, _, new = entry.partition(":")
        if not new or "." in new or ":" in new:
            raise ValueError(f"must be database.collection.field:newName, not {entry!r}")
        edits.append(_entry(path, new.strip()))
    return tuple(edits)


def masked_fields(text: str) -> tuple[FieldEdit, ...]:
    """Return the entries of field.masks: `path:hash`, `:truncate=3` or `:constant=text`.

    Raises ValueError.
    """
    edits = []
    for entry in _entries(text):
        path, _, rule = entry.partition(":")
        kind, _, value = rule.strip().partition("=")
        mask = Mask(kind, text=value)
        if kind == "truncate" and value.isdecimal():
            mask = Mask(kind, length=int(value))
        elif (kind, value) != ("hash", "") and kind != "constant":
            raise ValueError(
                "must be database.collection.field:rule, with the rule hash, truncate=N or "
                f"constant=TEXT, not {entry!r}"
            )
        edit = replace(_entry(path), mask=mask)
        if edit.path[0] == b"_id":
            raise ValueError(
                "_id is in the key and in the token of every event: it cannot be masked"
            )
        edits.append(edit)
    return tuple(edits)


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")]


def _entry(text: str, renamed: str | None = None) -> FieldEdit:
    database, *others = text.split(".")
    if not database or len(others) < 2 or not all(others):
        raise ValueError(f"must be database.collection.field, not {text!r}")
    new = None if renamed is None else renamed.encode()
    return FieldEdit(database, others[0], tuple(map(str.encode, others[1:])), new)
