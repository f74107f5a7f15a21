"""Recorded events, and oplog entries that produce them."""

import gzip
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import bson
from bson.binary import Binary
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS
from bson.timestamp import Timestamp

from embedded.images import Images
from embedded.oplog import NULL_OP_TIME, Oplog, OplogEntry
from embedded.storage.bson_values import Document
from shard_client.bson.resume_token import ResumeToken

DATA = Path(__file__).parents[1] / "recordings" / "data" / "workload.bson.gz"


class Conversation(NamedTuple):
    """One command to a shard and its reply; ``events`` are the reply's, as raw BSON."""

    command: Document
    reply: Document
    events: list[bytes]


@cache
def conversations() -> dict[tuple[str, str], list[Conversation]]:
    """All recorded conversations, by stream and by member."""
    found: dict[tuple[str, str], list[Conversation]] = defaultdict(list)
    with gzip.open(DATA) as file:
        data = file.read()
    for raw in list(bson.decode_iter(data, DEFAULT_RAW_BSON_OPTIONS))[1:]:
        reply = raw["reply"]
        events = []
        if "cursor" in reply:
            cursor = reply["cursor"]
            events = [e.raw for e in cursor.get("firstBatch", cursor.get("nextBatch"))]
        document = bson.decode(raw.raw)
        found[document["stream"], document["via"]].append(
            Conversation(document["command"], document["reply"], events)
        )
    return found


def shards() -> list[str]:
    return ["shard0", "shard1", "shard2", "shard3"]


def events(stream: str, via: str) -> Iterator[bytes]:
    for conversation in conversations()[stream, via]:
        yield from conversation.events


def _diff(description: Document) -> Document:
    """Return a diff that ``description`` describes; digits are treated as array positions."""
    root: Document = {}

    def holder(path: list[str]) -> Document:
        at = root
        for place, part in enumerate(path):
            at = at.setdefault("s" + part, {})
            if place + 1 < len(path) and path[place + 1].isdigit():
                at["a"] = True
        return at

    for path, value in description["updatedFields"].items():
        *parents, last = path.split(".")
        at = holder(parents)
        if last.isdigit() and parents:
            at["a"] = True
            at["u" + last] = value
        else:
            at.setdefault("u", {})[last] = value
    for path in description["removedFields"]:
        *parents, last = path.split(".")
        holder(parents).setdefault("d", {})[last] = False
    for cut in description["truncatedArrays"]:
        at = holder(cut["field"].split("."))
        at["a"], at["l"] = True, cut["newSize"]
    return root


def _operation(event: Document) -> Document:
    kind = event["operationType"]
    token = ResumeToken.parse(event["_id"])
    ns = f"{event['ns']['db']}.{event['ns'].get('coll', '')}"
    entry: Document = {"ns": ns}
    if token.uuid is not None:
        entry["ui"] = Binary.from_uuid(token.uuid)
    if kind == "insert":
        return entry | {"op": "i", "o": event["fullDocument"], "o2": event["documentKey"]}
    if kind == "replace":
        return entry | {"op": "u", "o": event["fullDocument"], "o2": event["documentKey"]}
    if kind == "update":
        change = {"$v": 2, "diff": _diff(event["updateDescription"])}
        return entry | {"op": "u", "o": change, "o2": event["documentKey"]}
    if kind == "delete":
        return entry | {"op": "d", "o": event["documentKey"]}
    return _command(event, entry)


def _command(event: Document, entry: Document) -> Document:
    kind, coll = event["operationType"], event["ns"].get("coll")
    description = event.get("operationDescription", {})
    if kind == "create" and "viewOn" in description:
        views = event["ns"]["db"] + ".system.views"
        return entry | {"op": "i", "ns": views, "o": {"_id": entry["ns"], **description}}
    entry |= {"op": "c", "ns": event["ns"]["db"] + ".$cmd"}
    if kind == "create":
        return entry | {"o": {"create": coll, **description}}
    if kind == "createIndexes":
        return entry | {"o": {"createIndexes": coll, **description["indexes"][0]}}
    if kind == "dropIndexes":
        [index] = description["indexes"]
        return entry | {"o": {"dropIndexes": coll, "index": index["name"]}, "o2": index}
    if kind == "modify":
        before = {"collectionOptions_old": event["stateBeforeChange"]["collectionOptions"]}
        return entry | {"o": {"collMod": coll, **description}, "o2": before}
    if kind == "rename":
        names = {"renameCollection": f"{event['ns']['db']}.{coll}"}
        names["to"] = "{db}.{coll}".format(**event["to"])
        return entry | {"o": {**names, "stayTemp": False}}
    if kind == "drop":
        return entry | {"o": {"drop": coll}, "o2": {"numRecords": 1}}
    assert kind == "dropDatabase", kind
    return entry | {"o": {"dropDatabase": 1}}


def recorded_oplog(shard: str) -> Oplog:
    """Return an oplog that produces the shard's recorded events, with no-ops at its ends."""
    start = conversations()["cluster", shard][0].command["pipeline"][0]["$changeStream"]
    first: Timestamp = start["startAtOperationTime"]
    oplog = Oplog()
    before = Timestamp(first.time - 1, 1)
    oplog.append({"op": "n", "ns": "", "o": {"msg": "periodic noop"}, "t": 1, "v": 2, "ts": before})
    at: dict[Timestamp, list[Document]] = defaultdict(list)
    for raw in events("cluster-expanded", shard):
        event = bson.decode(raw)
        at[event["clusterTime"]].append(event)
    for ts, group in at.items():
        entry: Document = {"ts": ts, "t": 1, "v": 2, "wall": group[0]["wallTime"]}
        if "txnNumber" in group[0]:
            entry |= {"op": "c", "ns": "admin.$cmd", "prevOpTime": NULL_OP_TIME}
            entry |= {"lsid": group[0]["lsid"], "txnNumber": group[0]["txnNumber"]}
            entry["o"] = {"applyOps": [_operation(event) for event in group]}
        else:
            [event] = group
            entry |= _operation(event)
        oplog.append(cast("OplogEntry", entry))
    return oplog


class RecordedHost:
    """A member with the recorded oplog and images."""

    def __init__(self, shard: str, token_version: int = 1) -> None:
        self.token_version = token_version
        self.oplog = recorded_oplog(shard)
        self.catalog = _NoViews()
        self._images: dict[Timestamp, Images] = {}
        for stream in ("coll-img", "coll-big-split"):
            fields: dict[Timestamp, Document] = defaultdict(dict)
            for raw in events(stream, shard):
                event = bson.decode(raw)
                fields[ResumeToken.parse(event["_id"]).cluster_time] |= event
            for ts, event in fields.items():
                if event.get("fullDocumentBeforeChange"):
                    images = Images(event["fullDocumentBeforeChange"], event.get("fullDocument"))
                    self._images[ts] = images

    def find_one(self, ns: str, uuid: Any, document_key: Document) -> Document | None:
        return None

    def images(self, uuid: bytes, ts: Timestamp, apply_ops_index: int = 0) -> Images | None:
        return self._images.get(ts)


class _NoViews:
    def view(self, ns: str) -> Document | None:
        return {"_id": ns} if ns == "rec.v" else None

    def get(self, ns: str) -> None:
        return None
