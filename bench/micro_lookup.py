"""Completing the events of a stream with updateLookup: CPU per event, without any socket.

Run: .venv/bin/python -m bench.micro_lookup [--events 1000] [--pad 400]

A replay answers each find with one and the same reply. Beside it stands the find itself: building
its command from the document keys, and cutting its reply into documents.
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import bson
from bson import Timestamp
from bson.raw_bson import RawBSONDocument

from router.lookup.completion import Completion
from router.lookup.keys import DocumentKey, filter_for_all
from router.lookup.plan import LookupPlan
from router.lookup.settings import LookupSettings
from router.lookup.upstream_reads import UpstreamReads
from router.memory import Holding, Memory
from router.request.stream_request import parse_request
from shard_client.cluster_clock import ClusterClock
from shard_client.wire.connection import Connection

COLLECTION_UUID = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
SECOND = 1_790_000_000
SHARES = (0, 10, 100)
ROUNDS, REPEAT = 15, 5
Key = dict[str, Any]
KEYS: dict[str, Callable[[int], Key]] = {
    "ObjectId": lambda number: {"_id": bson.ObjectId(f"{number:024x}")},
    "text": lambda number: {"_id": f"order-{number:08}"},
    "shard key, number": lambda number: {"s": number % 2, "_id": number},
    "document": lambda number: {"_id": {"tenant": number % 100, "n": number}},
}


class Replay:
    """A connection to an upstream that answers each command with ``body``."""

    closed = busy = False

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def command_raw(self, _raw: bytes, *, timeout: float) -> bytes:
        """Return the reply."""
        return self._body

    def abort(self) -> None:
        """Do nothing."""


def raw(document: dict[str, Any]) -> bytes:
    """Encode a document with its fields in their order, ``_id`` where it stands."""
    return bson.encode({"d": document})[7:-1]


def event(kind: str, number: int, key: Key, pad: int) -> bytes:
    """Return the event of an insert or an update as a server writes it."""
    token = (
        f"82{SECOND:08X}{number + 1:08X}2B022C0100296E5A1004{COLLECTION_UUID.hex.upper()}"
        f"46645F69640064{number:024X}0004"
    )
    fields: dict[str, Any] = {
        "_id": {"_data": token},
        "operationType": kind,
        "clusterTime": Timestamp(SECOND, number + 1),
        "wallTime": datetime.fromtimestamp(SECOND, UTC),
    }
    if kind == "insert":
        fields["fullDocument"] = RawBSONDocument(document(key, number, pad))
    fields |= {"ns": {"db": "bench", "coll": "events"}, "documentKey": RawBSONDocument(raw(key))}
    if kind == "update":
        fields["updateDescription"] = {
            "updatedFields": {"v": number}, "removedFields": [], "truncatedArrays": [],
        }  # fmt: skip
    return raw(fields)


def document(key: Key, number: int, pad: int) -> bytes:
    """Return a stored document: servers put the ``_id`` first."""
    return bson.encode({**key, "tenant": number % 100, "pad": "x" * pad, "v": number})


def measure(
    share: int, make_key: Callable[[int], Key], count: int, pad: int
) -> tuple[float, float]:
    """Return the microseconds per event of the completion, and of its find alone."""
    keys = [make_key(number) for number in range(count)]
    updated = [number for number in range(count) if number % 100 < share]
    kinds = ["update" if number % 100 < share else "insert" for number in range(count)]
    events = [event(kinds[number], number, keys[number], pad) for number in range(count)]
    found = [RawBSONDocument(document(keys[number], number, pad)) for number in updated]
    cursor = {"firstBatch": found, "id": bson.Int64(0), "ns": "bench.events"}
    body = bson.encode({"cursor": cursor, "ok": 1.0})
    command = {
        "aggregate": "events",
        "pipeline": [{"$changeStream": {"fullDocument": "updateLookup"}}],
        "cursor": {},
    }
    plan = LookupPlan.of(parse_request("bench", command))
    assert plan is not None
    document_keys = [DocumentKey.of(raw(keys[number])) for number in updated]

    async def connect() -> Connection:
        return cast("Connection", Replay(body))

    async def measuring() -> tuple[float, float]:
        settings = LookupSettings(first_events=count, most_events=count)
        reads = UpstreamReads(connect, ClusterClock(), settings)
        memory = Memory(1 << 40)
        completion = Completion(plan, reads, memory)
        done = await completion.complete(events)
        assert [bson.decode(done.events[n])["fullDocument"]["v"] for n in updated] == updated

        async def find() -> None:
            filter_ = RawBSONDocument(filter_for_all(document_keys))
            await reads.read("bench", {"find": "events", "filter": filter_}, Holding(memory))

        completing = await quickest(lambda: completion.complete(events), count)
        finding = await quickest(find, count) if updated else 0.0
        completion.close()
        return completing, finding

    return asyncio.run(measuring())


async def quickest(action: Callable[[], Coroutine[Any, Any, object]], events: int) -> float:
    """Return the CPU microseconds per event in the fastest round of ``action``."""
    shortest = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(REPEAT):
            await action()
        shortest = min(shortest, time.process_time() - begun)
    return shortest / REPEAT / events * 1e6


def main() -> None:
    """Measure each kind of document key, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--pad", type=int, default=400)
    args = parser.parse_args()
    print("us of CPU an event    updates %  completion  its find")
    for name, make_key in KEYS.items():
        for share in SHARES:
            completing, finding = measure(share, make_key, args.events, args.pad)
            print(f"{name:20} {share:10} {completing:11.2f} {finding:9.2f}")


if __name__ == "__main__":
    main()
