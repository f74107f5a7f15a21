"""One request for many documents: its filter, and the assignment of documents to keys.

Servers compare by value (1 equals 1.0, and under a collection's collation "a" may equal "A"); this
module compares by bytes. Keys that bytes do not decide are looked up again, in separate requests.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from shard_client.bson.values import ARRAY, DOCUMENT, NESTED
from shard_client.wire.bson_slices import document_of, find, iter_elements, nested_start, raw_fields

_ID: Final = b"_id"
_BY_BYTES: Final = frozenset({b"\x05", b"\x07", b"\x08", b"\x09", b"\x11"})
"""BSON types whose values are equal only if their bytes are: binary, ObjectId, boolean, date and
timestamp."""


def _sized(name: bytes) -> bytes:
    """Return a pattern of a field with a name whose value has a size by its type."""
    return (
        rb"(?:\x10N\0.{4}|[\x01\x09\x11\x12]N\0.{8}|\x07N\0.{12}|\x08N\0.|\x13N\0.{16}"
        rb"|\x05N\0\x10\0\0\0..{16})"
    ).replace(b"N", name)


_IDENTIFIER: Final = rb"(?:%b|\x02_id\0....[^\0]*+\0)" % _sized(_ID)
"""A pattern of an ``_id``: what follows differs if it is a text with a zero."""

USUAL_KEY: Final = rb"....(%b)?(%b)\0" % (_sized(rb"(?!_id\0)[^\0]+"), _IDENTIFIER)
"""A pattern of keys with an ``_id`` alone or after one other field, which are its groups.

It may match the beginning of another key, which claims more bytes.
"""

_leading_id: Final = re.compile(_IDENTIFIER, re.DOTALL).match
"""Matches an ``_id`` at the front of a document, from offset 4."""


class DocumentKey(NamedTuple):
    """An event's ``documentKey``: its raw BSON, its raw ``_id``, and its other raw fields.

    A raw field is its type, its name, a zero and its value; ``id`` is empty if there is none.
    """

    raw: bytes
    id: bytes
    others: tuple[bytes, ...]

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """Parse a raw document key; raises ProtocolError if it is malformed."""
        fields = raw_fields(raw)
        others = tuple(field for name, field in fields if name != _ID)
        return cls(raw, next((field for name, field in fields if name == _ID), b""), others)

    @property
    def decided_by_bytes(self) -> bool:
        """Whether its ``_id`` equals no value with other bytes."""
        return self.id[:1] in _BY_BYTES

    @property
    def has_irregular_array(self) -> bool:
        """Whether it contains an array whose elements are not named 0, 1, 2, … in order.

        Servers store such arrays; drivers do not write them. An index does not keep the names. So a
        scan of an index for several values passes such an ``_id`` by or, on 6.0, never ends, while
        a lookup of the one value finds it (docs/protocol.md#events).
        """
        return ARRAY in self.raw and _has_irregular_array(self.raw, 0, len(self.raw))


class LookupAnswer(NamedTuple):
    """The result of one request.

    ``found`` are documents by raw key. ``absent`` are the keys that certainly belong to no
    document. ``alone`` are the keys that must be looked up one by one. ``again`` are the keys that
    can be looked up together once more, without the others.
    """

    found: dict[bytes, bytes]
    absent: list[DocumentKey]
    alone: list[DocumentKey]
    again: list[DocumentKey]


def requests_of(keys: Iterable[DocumentKey]) -> Iterator[list[DocumentKey]]:
    """Divide distinct document keys into requests in which no ``_id`` occurs twice.

    A key with an irregular array has a request to itself.
    """
    requests: list[dict[bytes, DocumentKey]] = []
    for key in keys:
        if key.has_irregular_array:
            yield [key]
            continue
        identifier = key.id
        for request in requests:
            if identifier not in request:
                request[identifier] = key
                break
        else:
            requests.append({identifier: key})
    for request in requests:
        yield list(request.values())


def filter_for_all(keys: Sequence[DocumentKey]) -> bytes:
    """Return a raw filter for several document keys, which may match other documents, too.

    It selects by ``_id``, so that each shard scans one index, and by the shard key's first field,
    so that a mongos targets only the shards that may own the documents.
    """
    selected = []
    first = _name_of(keys[0].raw[4:])
    mark = first + b"\0"
    if first != _ID and all(key.raw.startswith(mark, 5) for key in keys):
        values = dict.fromkeys(key.others[0] for key in keys)
        selected.append(b"\x03%b%b" % (mark, _one_of(values, len(mark) + 1)))
    identifiers = dict.fromkeys(key.id for key in keys if key.id)
    selected.append(b"\x03_id\0" + _one_of(identifiers, len(b"\x03_id\0")))
    return document_of(b"".join(selected))


def assign(keys: Sequence[DocumentKey], documents: Iterable[bytes]) -> LookupAnswer:
    """Assign the ``documents`` to the ``keys``, of which no two have the same ``_id``."""
    by_id = {key.id: key for key in keys}
    by_key: dict[bytes, bytes] = {}
    doubled: set[bytes] = set()
    strays = 0
    for document in documents:
        leading = _leading_id(document, 4)
        end = len(document) if leading is None else leading.end()
        key = by_id.get(document[4:end])
        if key is None:
            key, end = by_id.get(_field_at(document, _ID) or b""), len(document)
        if key is None or not _has_fields(document, key.others, end):
            strays += 1
        elif key.raw in by_key:  # mongos raises an error here
            doubled.add(key.raw)
        else:
            by_key[key.raw] = document
    for raw in doubled:
        del by_key[raw]
    missing = [key for key in keys if key.raw not in by_key]
    if strays or doubled:
        # A stray's key has changed since, or equals a wanted key with other bytes.
        return LookupAnswer(by_key, [], missing, [])
    if not by_key:
        return LookupAnswer(by_key, missing, [], [])
    # A document that was found may also equal a second key with other bytes.
    absent = [key for key in missing if key.decided_by_bytes]
    return LookupAnswer(by_key, absent, [], [key for key in missing if not key.decided_by_bytes])


def _has_fields(document: bytes, fields: Sequence[bytes], position: int) -> bool:
    """Return whether a document has these fields, the names of which may be dotted paths.

    A field of the document begins at ``position``, or it ends there.
    """
    for field in fields:
        if document.startswith(field, position):
            position += len(field)
        elif _field_at(document, _name_of(field)) != field:
            return False
    return True


def _field_at(document: bytes, path: bytes) -> bytes | None:
    """Return a document's field with this name, or at this path, as a raw field; None if absent."""
    element = find(document, path)
    if element is None:
        start, end = 0, len(document)
        *outer, last = path.split(b".")
        for name in outer:
            element = find(document, name, start, end)
            if element is None or element.type != DOCUMENT:
                return None
            start, end = element.start, element.end
        element = find(document, last, start, end) if outer else None
    if element is None:
        return None
    return b"%c%b\0%b" % (element.type, path, document[element.start : element.end])


def _name_of(field: bytes) -> bytes:
    return field[1:].partition(b"\0")[0]


def _has_irregular_array(data: bytes, start: int, end: int, *, array: bool = False) -> bool:
    """Return whether a document, or an ``array``, is or contains an array with irregular names."""
    for index, element in enumerate(iter_elements(data, start, end)):
        if array and element.name != b"%d" % index:
            return True
        if element.type in NESTED:
            inner = nested_start(data, element)
            if _has_irregular_array(data, inner, element.end, array=element.type == ARRAY):
                return True
    return False


def _one_of(fields: Iterable[bytes], start: int) -> bytes:
    """Return a raw ``{$in: [...]}`` of the fields' values, which begin at ``start``."""
    items = [b"%b%d\0%b" % (field[:1], index, field[start:]) for index, field in enumerate(fields)]
    return document_of(b"\x04$in\0" + document_of(b"".join(items)))
