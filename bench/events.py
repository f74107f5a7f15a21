"""The events that the replaying shards serve: one global order, distributed round-robin."""

from datetime import UTC, datetime
from uuid import UUID

import bson
from bson import ObjectId, Timestamp

FIRST_SECOND = 1_790_000_000
EVENTS_A_SECOND = 10_000
TENANTS = 1000
"""The events belong to so many tenants in turn."""
COLLECTION_UUID = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
NAMESPACE = {"db": "bench", "coll": "events"}
START = f"82{FIRST_SECOND:08X}000000012B0229296E04"
END = "82FFFFFF00000000012B0229296E04"


def cluster_time(number: int) -> Timestamp:
    """Return the cluster time of event ``number`` in the global order."""
    return Timestamp(FIRST_SECOND + number // EVENTS_A_SECOND, number % EVENTS_A_SECOND + 2)


def token(number: int) -> str:
    """Return the resume token data of event ``number`` (docs/protocol.md#resume-tokens)."""
    time = cluster_time(number)
    key = f"46645F69640064{number:024X}0004"
    return f"82{time.time:08X}{time.inc:08X}2B022C0100296E5A1004{COLLECTION_UUID.hex.upper()}{key}"


def event(number: int, size: int) -> bytes:
    """Return insert event ``number`` as BSON, padded to ``size`` bytes."""
    key = ObjectId(f"{number:024x}")
    document = {
        "_id": {"_data": token(number)},
        "operationType": "insert",
        "clusterTime": cluster_time(number),
        "wallTime": datetime.fromtimestamp(FIRST_SECOND, UTC),
        "fullDocument": {"_id": key, "n": number, "tenant": number % TENANTS, "pad": ""},
        "ns": NAMESPACE,
        "documentKey": {"_id": key},
    }
    document["fullDocument"]["pad"] = "x" * (size - len(bson.encode(document)))  # type: ignore[index]
    return bson.encode(document)


def shard_events(shard: int, shards: int, total: int, size: int) -> list[tuple[str, bytes]]:
    """Return the ``(token, event)`` pairs of one shard out of ``total`` events."""
    return [(token(number), event(number, size)) for number in range(shard, total, shards)]
