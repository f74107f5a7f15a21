"""Streams with updateLookup, read through the router and, on real servers, through mongos."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import bson
from bson import Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.conformance.streams import Event, Stream, next_tick, now
from tests.harness.clusters import Client, TestCluster, shard

Data = Database[dict[str, Any]]
LOOKUP = {"fullDocument": "updateLookup"}
IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}
_RAW: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument)


def tick(client: Client) -> Timestamp:
    """Return a cluster time after all changes so far."""
    return next_tick(now(client))


class Both:
    """Reads streams through the router and, on real servers, through mongos as well.

    ``clients`` holds a client of the router and, on real servers, one of the mongos.
    """

    def __init__(self, cluster: TestCluster, router: Client, mongos: Client) -> None:
        self.clients = (router, mongos) if cluster.real else (router,)
        self._mongos = mongos

    def read(
        self,
        database: str,
        target: str | int = 1,
        *,
        options: Mapping[str, Any] = LOOKUP,
        stages: Sequence[Mapping[str, Any]] = (),
        cursor: Mapping[str, Any] = MappingProxyType({}),
        **fields: Any,
    ) -> list[Event]:
        """Read all events since the start given in ``options``; both sides must agree."""
        end, found = now(self._mongos), list[list[bytes]]()
        fields |= {"cursor": cursor, "codec": _RAW}
        for client in self.clients:
            with Stream(client, database, target, options, [*stages], **fields) as stream:
                found.append([bytes(event.raw) for event in stream.past(end, **cursor)])
        events, *others = found
        assert all(other == events for other in others)
        return [bson.decode(event) for event in events]


def updates(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["operationType"] == "update"]


def documents(events: Sequence[Event]) -> list[Any]:
    return [event["fullDocument"] for event in updates(events)]


def spread(db: Data, cluster: TestCluster, name: str = "a", key: str = "k") -> None:
    """Shard a collection by ``k``: below 10 on the first shard, the rest on the second."""
    first, second = cluster.shards
    shard(db.client, f"{db.name}.{name}", {key: 1}, first, {10: second})


def move(db: Data, cluster: TestCluster, key: Mapping[str, Any], to: int, name: str = "a") -> None:
    shard = list(cluster.shards)[to]
    db.client.admin.command("moveChunk", f"{db.name}.{name}", find=dict(key), to=shard)


def since(start: Timestamp, **options: Any) -> dict[str, Any]:
    return {**LOOKUP, "startAtOperationTime": start, **options}
