"""Events of the documents of a snapshot, of the operation type "read".

An event is the document's own bytes within bytes that are made once for a chunk. The document key
is copied from the document, whose fields are not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Set
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import bson
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from shard_client.bson.values import FIXED, UNCOUNTED
from spark_sink.events.header import READ
from spark_sink.events.positions import after
from spark_sink.events.runs import Run
from spark_sink.events.slices import Slice, document_of, value_at, values_in
from spark_sink.snapshot.plan import SnapshotCollection

_INT = struct.Struct("<i")
_FIRST_FIELD = 4  # after the document's size
_NOTHING = slice(0)


class KeyFinder:
    """Finds the document key of a collection's documents.

    Most documents of a collection begin alike: their first fields have the same names, types and
    sizes, so that their keys lie at the same offsets as in the document before. These are tried
    first, and the fields are searched if the beginning differs. `key` has the dotted paths of the
    shard key.
    """

    def __init__(self, key: Sequence[str]) -> None:
        paths = [path.encode() for path in (key if "_id" in key else (*key, "_id"))]
        self._paths = paths
        self._wanted = frozenset(path.partition(b".")[0] for path in (*paths, b"_id"))
        self._has_offsets = not any(b"." in path for path in paths)
        self._heads: tuple[bytes, ...] = (b"no document has this",)
        self._heads_of: Callable[[bytes], tuple[bytes, ...]] = itemgetter(_NOTHING, _NOTHING)
        self._values_of = self._heads_of
        self._size = b""

    def __call__(self, raw: bytes) -> bytes:
        """Return the document key. Raises InvalidBSON."""
        if self._heads_of(raw) == self._heads:
            return self._size + b"".join(self._values_of(raw)) + b"\0"
        return self._search(raw)

    def _search(self, raw: bytes) -> bytes:
        fields: dict[bytes, Slice] = {}
        missing = set(self._wanted)
        for kind, name, at, end in values_in(raw, 0, len(raw)):
            fields[name] = Slice(kind, raw[at:end])
            missing.discard(name)
            if not missing:
                break
        values = [(path, value_at(fields, path)) for path in self._paths]
        if self._has_offsets and self._wanted <= fields.keys():
            self._remember(raw, fields)
        return document_of((path, value) for path, value in values if value is not None)

    def _remember(self, raw: bytes, fields: dict[bytes, Slice]) -> None:
        """Store the offsets of the fields, and the bytes that the next document must have there."""
        heads: list[tuple[slice, bytes]] = [(_NOTHING, b"")]
        elements: dict[bytes, slice] = {}
        position = _FIRST_FIELD
        for name, (kind, value) in fields.items():
            head = bytes((kind,)) + name + b"\0"
            end = position + len(head) + len(value)
            if kind in UNCOUNTED:
                head += value[:4]
            elif kind not in FIXED:
                return
            heads.append((slice(position, position + len(head)), head))
            elements[name] = slice(position, end)
            position = end
        if any(raw[where] != head for where, head in heads):
            return  # a name occurs twice
        chosen = [elements[path] for path in self._paths]
        self._heads = tuple(head for _, head in heads)
        self._heads_of = itemgetter(*(where for where, _ in heads))
        self._values_of = itemgetter(_NOTHING, *chosen)
        self._size = _INT.pack(sum(part.stop - part.start for part in chosen) + 5)


class DocumentEvents:
    """Makes events of the documents of a chunk, with the collection's current name.

    The documents are read at the cluster time `point`; events have the field `signal` if it is
    given.
    """

    def __init__(
        self, collection: SnapshotCollection, point: Timestamp, signal: dict[str, Any] | None = None
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

    def run(self, documents: Sequence[bytes], seen: set[bytes], *others: Set[bytes]) -> Run:
        """Return the events of documents whose keys are in none of the sets; add them to `seen`.

        Two shards may have documents with the same `_id`, which differ in the shard key.
        """
        by_key = dict(zip(map(self._keys, documents), documents, strict=True))
        keys = by_key.keys()
        for known in (seen, *others):
            if not keys.isdisjoint(known):
                by_key = {key: raw for key, raw in by_key.items() if key not in known}
        seen.update(keys)
        head, names, around, pack = self._head, self._names, self._around, _INT.pack
        events = [
            b"".join((pack(around + len(raw) + len(key)), head, raw, names, key, b"\0"))
            for key, raw in by_key.items()
        ]
        return Run([self._token] * len(events), events)
