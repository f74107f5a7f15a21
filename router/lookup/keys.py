"""One request for many documents: its filter, and which document belongs to which key.

Servers compare by value (1 equals 1.0, and by a collection's collation "a" may equal "A"), this
module by bytes. What bytes do not decide is asked for again, in a request of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from shard_client.bson_slices import DOCUMENT, Element, iter_elements

_ID: Final = b"_id"
_BY_BYTES: Final = frozenset({0x05, 0x07, 0x08, 0x09, 0x11})
"""BSON types whose values are equal only if their bytes are: binary, ObjectId, boolean, date and
timestamp."""

_int32 = Struct("<i")

_Elements = tuple[tuple[bytes, bytes], ...]
"""The fields of a document key: name, and type and value in bytes."""


class Answer(NamedTuple):
    """What one request has brought.

    ``found`` are documents by key. ``absent`` are the keys of which it is certain that no document
    has them; ``alone`` those that are to be asked for one by one, and ``again`` those that may be
    asked for together once more, without the others.
    """

    found: dict[bytes, bytes]
    absent: list[bytes]
    alone: list[bytes]
    again: list[bytes]


def each_once(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Divide raw document keys into requests in which no ``_id`` comes twice.

    Keys of equal bytes count once.
    """
    requests: list[dict[bytes, bytes]] = []
    for key in dict.fromkeys(keys):
        identifier = _id_of(_elements(key))
        for request in requests:
            if identifier not in request:
                request[identifier] = key
                break
        else:
            requests.append({identifier: key})
    for request in requests:
        yield list(request.values())


def filter_for_all(keys: Sequence[bytes]) -> bytes:
    """Return a raw filter for several document keys, which may let other documents through, too.

    By ``_id``, so that each shard walks one index; by the shard key's first field as well, so that
    a mongos asks only the shards that may have them.
    """
    documents = [_elements(key) for key in keys]
    firsts = {elements[0][0] for elements in documents if elements}
    names = [*firsts, _ID] if len(firsts) == 1 and _ID not in firsts else [_ID]
    fields = []
    for name in names:
        values = dict.fromkeys(
            value for elements in documents for field, value in elements if field == name
        )
        fields.append(b"\x03%b\0%b" % (name, _one_of(values)))
    return _document(fields)


def match_up(keys: Iterable[bytes], documents: Iterable[bytes]) -> Answer:
    """Decide which of the ``documents`` belongs to which of the ``keys``, all of them distinct."""
    wanted = {_elements(key): key for key in keys}
    by_id: dict[bytes, list[bytes]] = {}
    for elements, key in wanted.items():
        by_id.setdefault(_id_of(elements), []).append(key)
    shapes = {tuple(name for name, _ in elements) for elements in wanted}
    found: dict[bytes, bytes] = {}
    doubled: set[bytes] = set()
    suspects: set[bytes] = set()
    for document in documents:
        own = [wanted[each] for shape in shapes if (each := _key_of(document, shape)) in wanted]
        for key in own:
            if key in found:  # mongos has an error for it
                doubled.add(key)
            found[key] = document
        if not own:
            # Its key has changed since, or equals a wanted one by other bytes.
            suspects.update(by_id.get(_id_of(_key_of(document, (_ID,)))) or wanted.values())
    for key in doubled:
        del found[key]
    missing = [key for key in wanted.values() if key not in found]
    alone = [key for key in missing if key in doubled or key in suspects]
    rest = [key for key in missing if key not in doubled and key not in suspects]
    if not found and not alone:
        return Answer(found, rest, alone, [])
    # A document that was found may hide that it equals a second key, by other bytes.
    absent = [key for key in rest if _decided_by_bytes(key)]
    return Answer(found, absent, alone, [key for key in rest if not _decided_by_bytes(key)])


def _elements(key: bytes) -> _Elements:
    return tuple(
        (each.name, bytes((each.type,)) + key[each.start : each.end]) for each in iter_elements(key)
    )


def _id_of(elements: _Elements | None) -> bytes:
    return next((value for name, value in elements or () if name == _ID), b"")


def _key_of(document: bytes, shape: Sequence[bytes]) -> _Elements | None:
    """Return a document's fields at these paths with dots, None if one of them is not there."""
    values = []
    for path in shape:
        element = _at(document, path)
        if element is None:
            return None
        values.append((path, bytes((element.type,)) + document[element.start : element.end]))
    return tuple(values)


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


def _decided_by_bytes(key: bytes) -> bool:
    return _id_of(_elements(key))[:1] in _TYPES_BY_BYTES


_TYPES_BY_BYTES: Final = frozenset(bytes((kind,)) for kind in _BY_BYTES)


def _one_of(values: Iterable[bytes]) -> bytes:
    """Return a raw ``{$in: [...]}`` of values, each its type and its bytes."""
    items = [b"%b%d\0%b" % (value[:1], index, value[1:]) for index, value in enumerate(values)]
    return _document([b"\x04$in\0" + _document(items)])


def _document(fields: Sequence[bytes]) -> bytes:
    body = b"".join(fields)
    return b"%b%b\0" % (_int32.pack(len(body) + 5), body)
