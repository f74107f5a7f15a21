"""Streams with updateLookup, read through the router and, on real servers, through mongos."""

from collections.abc import Mapping, Sequence
from typing import Any

import bson
from bson import Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.harness.clusters import Client, TestCluster
from tests.harness.until import Deadline

Event = dict[str, Any]
Data = Database[dict[str, Any]]
LOOKUP = {"fullDocument": "updateLookup"}
IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}
_RAW: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument)


def tick(client: Client) -> Timestamp:
    """Return a cluster time after all changes so far."""
    time = client.admin.command("ping")["$clusterTime"]["clusterTime"]
    return Timestamp(time.time, time.inc + 1)


def drain(
    client: Client, command: Mapping[str, Any], database: str, past: Timestamp
) -> list[bytes]:
    """Read a stream until its token has passed a time; return the raw events."""
    events: list[bytes] = []
    deadline = Deadline()
    with client.start_session() as session:
        reply = client[database].command(dict(command), session=session, codec_options=_RAW)
        name = command["aggregate"] if command["aggregate"] != 1 else "$cmd.aggregate"
        while True:
            cursor = reply["cursor"]
            batch = cursor["firstBatch"] if "firstBatch" in cursor else cursor["nextBatch"]
            events += [bytes(event.raw) for event in batch]
            data = cursor["postBatchResumeToken"]["_data"]
            if Timestamp(int(data[2:10], 16), int(data[10:18], 16)) > past or not cursor["id"]:
                break
            deadline.check(f"the end of the stream, after {len(events)} events")
            more = {"getMore": cursor["id"], "collection": name, "maxTimeMS": 100}
            more |= {k: v for k, v in command["cursor"].items() if k == "batchSize"}
            reply = client[database].command(more, session=session, codec_options=_RAW)
        if cursor["id"]:
            kill = {"killCursors": name, "cursors": [cursor["id"]]}
            client[database].command(kill, session=session)
    return events


class Both:
    """Reads streams through the router and, on real servers, through mongos as well.

    ``clients`` holds a client of the router and, on real servers, one of the mongos.
    """

    def __init__(self, cluster: TestCluster, router: Client, mongos: Client) -> None:
        self.clients = (router, mongos) if cluster.real else (router,)
        self._mongos = mongos
        self._members = [cluster.direct(name) for name in (*cluster.shards, "config")]

    def close(self) -> None:
        for each in self._members:
            each.close()

    def read(
        self,
        database: str,
        target: str | int = 1,
        *,
        options: Mapping[str, Any] = LOOKUP,
        stages: Sequence[Mapping[str, Any]] = (),
        **fields: Any,
    ) -> list[Event]:
        """Read all events since the start given in ``options``; both sides must agree."""
        command = {
            "aggregate": target,
            "pipeline": [{"$changeStream": dict(options)}, *stages],
            "cursor": {},
            **fields,
        }
        told = self._mongos.admin.command("ping")["$clusterTime"]
        past = told["clusterTime"]
        for each in self._members:  # no stream waits for the no-op of an idle one
            with each.start_session() as session:
                session.advance_cluster_time(told)
                note = {"appendOplogNote": 1, "data": {}, "writeConcern": {"w": "majority"}}
                each.admin.command(note, session=session)
        events, *others = (drain(client, command, database, past) for client in self.clients)
        assert all(other == events for other in others)
        return [bson.decode(event) for event in events]


def updates(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["operationType"] == "update"]


def documents(events: Sequence[Event]) -> list[Any]:
    return [event["fullDocument"] for event in updates(events)]


def spread(db: Data, cluster: TestCluster, name: str = "a", key: str = "k") -> None:
    """Shard a collection by ``k``: below 10 on the first shard, the rest on the second."""
    namespace = f"{db.name}.{name}"
    admin = db.client.admin
    admin.command("shardCollection", namespace, key={key: 1})
    admin.command("split", namespace, middle={key: 10})
    move(db, cluster, {key: 10}, 1, name)


def move(db: Data, cluster: TestCluster, key: Mapping[str, Any], to: int, name: str = "a") -> None:
    shard = list(cluster.shards)[to]
    db.client.admin.command("moveChunk", f"{db.name}.{name}", find=dict(key), to=shard)


def since(start: Timestamp, **options: Any) -> dict[str, Any]:
    return {**LOOKUP, "startAtOperationTime": start, **options}
