"""A member whose oplog is written by hand."""

from datetime import datetime
from typing import Any, cast

from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.change_streams import ChangeStreamCursor, open_change_stream
from embedded.images import Images
from embedded.oplog import NULL_OP_TIME, Oplog, OplogEntry
from embedded.storage.bson_values import Document
from embedded.storage.catalog import Catalog

UUID_A = Binary(bytes(range(16)), 4)
UUID_B = Binary(bytes(range(16, 32)), 4)
WALL = datetime(2026, 11, 20, 8, 0, 0)  # noqa: DTZ001
START = Timestamp(1000, 1)
LSID = {"id": Binary(b"s" * 16, 4), "uid": b"u" * 32}


class HandmadeHost:
    """Each method writes one entry, a tick after the previous one, and returns its ``ts``."""

    def __init__(self, token_version: int = 1, max_entries: int = 10_000) -> None:
        self.token_version = token_version
        self.oplog = Oplog(max_entries)
        self.catalog = Catalog(lambda: UUID_A)
        self.documents: dict[Any, Document] = {}
        self.stored: dict[tuple[Timestamp, int], Images] = {}
        self._tick = 0
        self.noop()

    def find_one(self, ns: str, uuid: Any, document_key: Document) -> Document | None:
        return self.documents.get(document_key["_id"])

    def images(self, uuid: bytes, ts: Timestamp, apply_ops_index: int = 0) -> Images | None:
        return self.stored.get((ts, apply_ops_index))

    def write(self, op: str, ns: str, o: Document, **fields: Any) -> Timestamp:
        self._tick += 1
        ts = Timestamp(1000, self._tick)
        entry = {"op": op, "ns": ns, "o": o, "ts": ts, "t": 1, "v": 2, "wall": WALL, **fields}
        self.oplog.append(cast("OplogEntry", entry))
        return ts

    def noop(self, **fields: Any) -> Timestamp:
        return self.write("n", fields.pop("ns", ""), {"msg": "periodic noop"}, **fields)

    def insert(self, ns: str, document: Document, **fields: Any) -> Timestamp:
        fields = {"ui": UUID_A, "o2": {"_id": document["_id"]}, **fields}
        return self.write("i", ns, document, **fields)

    def update(self, ns: str, key: Any, diff: Document, **fields: Any) -> Timestamp:
        change = {"$v": 2, "diff": diff}
        return self.write("u", ns, change, **{"ui": UUID_A, "o2": {"_id": key}, **fields})

    def replace(self, ns: str, document: Document) -> Timestamp:
        return self.write("u", ns, document, ui=UUID_A, o2={"_id": document["_id"]})

    def delete(self, ns: str, key: Any) -> Timestamp:
        return self.write("d", ns, {"_id": key}, ui=UUID_A)

    def command(self, database: str, o: Document, **fields: Any) -> Timestamp:
        return self.write("c", f"{database}.$cmd", o, **fields)

    def drop(self, database: str, name: str) -> Timestamp:
        return self.command(database, {"drop": name}, ui=UUID_A, o2={"numRecords": 1})

    def transaction(self, operations: list[Document], **fields: Any) -> Timestamp:
        more = fields.pop("more", {})
        fields = {"lsid": LSID, "txnNumber": 7, "prevOpTime": NULL_OP_TIME, **fields}
        return self.write("c", "admin.$cmd", {"applyOps": operations, **more}, **fields)

    def watch(
        self,
        *stages: Document,
        on: tuple[str, str | int] = ("db", 1),
        since: Timestamp | None = START,
        **options: Any,
    ) -> ChangeStreamCursor:
        """Open a stream from ``since`` (the oplog's start); None: from now, or from a token."""
        if since is not None and not {"resumeAfter", "startAfter"} & options.keys():
            options = {"startAtOperationTime": since, **options}
        pipeline = [{"$changeStream": options}, *stages]
        command: Document = {"aggregate": on[1], "pipeline": pipeline, "cursor": {}}
        return open_change_stream(self, on[0], command)


def inserted(ns: str, key: Any, uuid: Binary = UUID_A) -> Document:
    """Return an insert inside a transaction."""
    return {"op": "i", "ns": ns, "ui": uuid, "o": {"_id": key}, "o2": {"_id": key}}
