"""One request for many documents: its filter, and the assignment of documents to keys.

Servers compare by value (1 equals 1.0, and under a collection's collation "a" may equal "A"); this
module compares by bytes. Keys that bytes do not decide are looked up again, in separate requests.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from shard_client.wire.bson_slices import (
    ARRAY,
    DOCUMENT,
    NESTING,
    Element,
    document_of,
    iter_elements,
    nested_start,
)

_ID: Final = b"_id"
_ID_ALONE: Final = (_ID,)
_BY_BYTES: Final = frozenset({b"\x05", b"\x07", b"\x08", b"\x09", b"\x11"})
"""BSON types whose values are equal only if their bytes are: binary, ObjectId, boolean, date and
timestamp."""

_leading_id: Final = re.compile(
    rb"(?:[\x01\x09\x11\x12]_id\0.{8}|\x07_id\0.{12}|\x10_id\0.{4}|\x08_id\0.|\x13_id\0.{16})",
    re.DOTALL,
).match
"""Matches an ``_id`` of a fixed size at the front of a document, from offset 4."""


_Elements = tuple[tuple[bytes, bytes], ...]
"""The fields of a document key: name, and type and value in bytes."""


class DocumentKey(NamedTuple):
    """An event's ``documentKey``: its raw BSON, its fields, and its ``_id``.

    ``id`` is the type and value of the ``_id``; empty if it has none.
    """

    raw: bytes
    elements: _Elements
    id: bytes

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """Parse a raw document key; raises ProtocolError if it is malformed."""
        leading = _leading_id(raw, 4)
        if leading is not None and leading.end() == len(raw) - 1:
            identifier = raw[4:5] + raw[9:-1]
            return cls(raw, ((_ID, identifier),), identifier)
        elements = tuple(
            (name, raw[start - len(name) - 2 : start - len(name) - 1] + raw[start:end])
            for _, name, start, end in iter_elements(raw)
        )
        return cls(raw, elements, next((value for name, value in elements if name == _ID), b""))

    @property
    def decided_by_bytes(self) -> bool:
        """Whether its ``_id`` equals no value with other bytes."""
        return self.id[:1] in _BY_BYTES

    @property
    def has_text_besides_id(self) -> bool:
        """Whether the shard key contains a string, which a collection's collation may fold."""
        return any(name != _ID and value[:1] == b"\x02" for name, value in self.elements)

    @property
    def has_irregular_array(self) -> bool:
        """Whether it contains an array whose elements are not named 0, 1, 2, … in order.

        Servers store such arrays; drivers do not write them. An index does not keep the names. So a
        scan of an index for several values passes such an ``_id`` by or, on 6.0, never ends, while
        a lookup of the one value finds it (docs/protocol.md#events).
        """
        return ARRAY in self.raw and _has_irregular_array(self.raw, 0, len(self.raw))


class Answer(NamedTuple):
    """The result of one request.

    ``found`` are documents by raw key. ``absent`` are the keys that certainly belong to no
    document. ``alone`` are the keys that must be looked up one by one. ``again`` are the keys that
    can be looked up together once more, without the others.
    """

    found: dict[bytes, bytes]
    absent: list[DocumentKey]
    alone: list[DocumentKey]
    again: list[DocumentKey]


def each_once(keys: Iterable[DocumentKey]) -> Iterator[list[DocumentKey]]:
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
    firsts = {key.elements[0][0] for key in keys if key.elements}
    names = [*firsts, _ID] if len(firsts) == 1 and _ID not in firsts else [_ID]
    fields = []
    for name in names:
        values = dict.fromkeys(
            value for key in keys for field, value in key.elements if field == name
        )
        fields.append(b"\x03%b\0%b" % (name, _one_of(values)))
    return document_of(b"".join(fields))


def match_up(keys: Sequence[DocumentKey], documents: Iterable[bytes]) -> Answer:
    """Assign the ``documents`` to the ``keys``, which are distinct."""
    wanted = {key.elements: key for key in keys}
    shapes = {tuple(name for name, _ in elements) for elements in wanted}
    found: dict[bytes, bytes] = {}
    doubled: set[bytes] = set()
    strays: list[bytes] = []
    for document in documents:
        stray = True
        for shape in shapes:
            elements = _fields_of(document, shape)
            key = wanted.get(elements) if elements is not None else None
            if key is not None:
                stray = False
                if key.raw in found:  # mongos raises an error here
                    doubled.add(key.raw)
                found[key.raw] = document
        if stray:
            strays.append(document)
    for raw in doubled:
        del found[raw]
    missing = [key for key in keys if key.raw not in found]
    suspects = _suspects(missing, keys, strays)
    alone = [key for key in missing if key.raw in doubled or key.raw in suspects]
    rest = [key for key in missing if key.raw not in doubled and key.raw not in suspects]
    if not found and not alone:
        return Answer(found, rest, alone, [])
    # A document that was found may also equal a second key with other bytes.
    absent = [key for key in rest if key.decided_by_bytes]
    return Answer(found, absent, alone, [key for key in rest if not key.decided_by_bytes])


def _suspects(
    missing: Sequence[DocumentKey], keys: Sequence[DocumentKey], strays: Iterable[bytes]
) -> set[bytes]:
    """Return the raw keys to which the ``strays``, documents that match no key's bytes, may belong.

    Such a document's key has changed since, or equals a wanted key with other bytes.
    """
    suspects: set[bytes] = set()
    ids = {key.id for key in keys}
    for document in strays:
        elements = _fields_of(document, (_ID,))
        identifier = elements[0][1] if elements else b""
        suspects.update(key.raw for key in missing if key.id == identifier or identifier not in ids)
    return suspects


def _fields_of(document: bytes, shape: Sequence[bytes]) -> _Elements | None:
    """Return a document's fields at these dotted paths, or None if one of them is absent."""
    if shape == _ID_ALONE and (leading := _leading_id(document, 4)) is not None:
        return ((_ID, document[4:5] + document[9 : leading.end()]),)
    values: dict[bytes, bytes] = {}
    for kind, name, start, end in iter_elements(document):
        if name in shape:
            values[name] = bytes((kind,)) + document[start:end]
            if len(values) == len(shape):
                break
    else:
        for path in shape:
            if path not in values:
                element = _at(document, path)
                if element is None:
                    return None
                values[path] = bytes((element.type,)) + document[element.start : element.end]
    return tuple((path, values[path]) for path in shape)


def _at(document: bytes, path: bytes) -> Element | None:
    start, end = 0, len(document)
    *outer, last = path.split(b".")
    for name in outer:
        element = _named(document, name, start, end)
        if element is None or element.type != DOCUMENT:
            return None
        start, end = element.start, element.end
    return _named(document, last, start, end)


def _named(document: bytes, name: bytes, start: int, end: int) -> Element | None:
    return next((each for each in iter_elements(document, start, end) if each.name == name), None)


def _has_irregular_array(data: bytes, start: int, end: int, *, array: bool = False) -> bool:
    """Return whether a document, or an ``array``, is or contains an array with irregular names."""
    for index, element in enumerate(iter_elements(data, start, end)):
        if array and element.name != b"%d" % index:
            return True
        if element.type in NESTING:
            inner = nested_start(data, element)
            if _has_irregular_array(data, inner, element.end, array=element.type == ARRAY):
                return True
    return False


def _one_of(values: Iterable[bytes]) -> bytes:
    """Return a raw ``{$in: [...]}`` of values, each given as its type and its bytes."""
    items = [b"%b%d\0%b" % (value[:1], index, value[1:]) for index, value in enumerate(values)]
    return document_of(b"\x04$in\0" + document_of(b"".join(items)))
