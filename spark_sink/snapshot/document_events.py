"""Makes the events of a snapshot: documents in the form of change events.

An event is the document's own bytes within bytes that are made once for a chunk. The document key
is copied from the document, whose fields are not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import bson
from bson.timestamp import Timestamp

from spark_sink.events.header import READ
from spark_sink.events.positions import after, high_water_mark
from spark_sink.events.runs import Run
from spark_sink.events.slices import DOCUMENT, FIXED, LED_BY_SIZE, Slice, document_of, fields_of
from spark_sink.snapshot.plan import Collection

_INT = struct.Struct("<i")
_FIRST_FIELD = 4  # behind the document's size


class KeyFinder:
    """Finds the `_id` and the document key of a collection's documents.

    Most documents of a collection begin alike: their first fields have the same names, types and
    sizes, so that their keys lie at the same offsets as in the document before. These are tried
    first, and the fields are searched if the beginning differs. `key` has the dotted paths of the
    shard key.
    """

    def __init__(self, key: Sequence[str]) -> None:
        paths = [path.encode() for path in (key if "_id" in key else (*key, "_id"))]
        self._paths = paths
        self._wanted = frozenset(path.partition(b".")[0] for path in (*paths, b"_id"))
        self._has_places = not any(b"." in path for path in paths)
        self._heads: list[tuple[int, int, bytes]] = []
        self._identifier = slice(0)
        self._elements: list[slice] = []
        self._size = b""

    def __call__(self, raw: bytes) -> tuple[bytes, bytes]:
        """Return the bytes of the `_id`, as a field with type and name, and the document key.

        Raises InvalidBSON.
        """
        for start, stop, head in self._heads:
            if raw[start:stop] != head:
                break
        else:
            if self._heads:
                values = b"".join([raw[element] for element in self._elements])
                return raw[self._identifier], self._size + values + b"\0"
        return self._search(raw)

    def _search(self, raw: bytes) -> tuple[bytes, bytes]:
        fields = fields_of(raw, self._wanted)
        values = [(path, _value_at(fields, path)) for path in self._paths]
        if self._has_places and self._wanted <= fields.keys():
            self._remember(raw, fields)
        key = document_of((path, value) for path, value in values if value is not None)
        return fields[b"_id"].named(b"_id"), key

    def _remember(self, raw: bytes, fields: dict[bytes, Slice]) -> None:
        """Store the offsets of the fields, and the bytes that the next document must have there."""
        self._heads = []
        heads: list[tuple[int, int, bytes]] = []
        elements: dict[bytes, slice] = {}
        position = _FIRST_FIELD
        for name, (kind, value) in fields.items():
            head = bytes((kind,)) + name + b"\0"
            end = position + len(head) + len(value)
            if kind in LED_BY_SIZE:
                head += value[:4]
            elif kind not in FIXED:
                return
            heads.append((position, position + len(head), head))
            elements[name] = slice(position, end)
            position = end
        if any(raw[start:stop] != head for start, stop, head in heads):
            return  # a name occurs twice
        self._heads = heads
        self._identifier = elements[b"_id"]
        self._elements = [elements[path] for path in self._paths]
        self._size = _INT.pack(sum(each.stop - each.start for each in self._elements) + 5)


class DocumentEvents:
    """Makes events of the documents of a chunk, with the collection's current name.

    The documents are read at the cluster time `point`; events have the field `signal` if it is
    given.
    """

    def __init__(
        self, collection: Collection, point: Timestamp, signal: dict[str, Any] | None = None
    ) -> None:
        # The fields of an event in the servers' order, each encoded as a separate document.
        self._token = high_water_mark(after(point).time)
        head: dict[str, Any] = {"_id": {"_data": self._token}, "operationType": READ}
        head |= {"clusterTime": point, "wallTime": datetime.now(UTC)}
        if signal is not None:
            head["signal"] = signal
        names = {"ns": {"db": collection.database, "coll": collection.name}}
        self._head = bson.encode(head)[4:-1] + b"\x03fullDocument\0"
        self._names = bson.encode(names)[4:-1] + b"\x03documentKey\0"
        self._around = len(self._head) + len(self._names) + 5  # the size, and the closing zero
        self._keys = KeyFinder(collection.key)

    def run(self, documents: Sequence[bytes], seen: set[bytes]) -> Run:
        """Return the events of the documents whose `_id` is not in `seen`, and add it there."""
        events = []
        head, names, around, pack = self._head, self._names, self._around, _INT.pack
        for raw in documents:
            identifier, key = self._keys(raw)
            if identifier not in seen:
                seen.add(identifier)
                size = pack(around + len(raw) + len(key))
                events.append(b"".join((size, head, raw, names, key, b"\0")))
        return Run([self._token] * len(events), events)


def _value_at(fields: dict[bytes, Slice], path: bytes) -> Slice | None:
    name, _, rest = path.partition(b".")
    value = fields.get(name)
    if not rest or value is None:
        return value
    return _value_at(fields_of(value.value), rest) if value.kind == DOCUMENT else None
