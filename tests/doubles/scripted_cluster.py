"""A cluster of scripted members, and cursor registries on it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import bson
from bson import Timestamp

from router.catalog.cluster import Cluster
from router.cursors.cursor import MergedCursor, Owner
from router.cursors.registry import CursorRegistry
from router.lookup.upstream_reads import Lend
from router.request.stream_request import StreamRequest, parse_request
from router.stream.open_streams import OpenStreams
from router.stream.readers.log_reader import Batch
from router.stream.remotes.noop_writer import NoOpWriter
from router.stream_settings import StreamSettings
from tests.doubles.probed_replica_set import ProbedReplicaSet
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE

LIMITS = StreamSettings(
    await_quiet=0.01,
    await_unknown=0.005,
    await_watermark=0.001,
    probe_worth=60.0,
    prefetch_time=PATIENCE,
    reply_timeout=PATIENCE,
    failure_timeout=PATIENCE,
    open_timeout=PATIENCE,
    connect_timeout=PATIENCE,
    close_timeout=PATIENCE,
    backoff_first=0.005,
    noop_writes=False,
)
"""Nothing times out on a busy machine; tests of a time limit set it."""


def stream(start: int | None = 100, **fields: Any) -> StreamRequest:
    """Return a request for the whole database "db" from second ``start``."""
    options = {} if start is None else {"startAtOperationTime": Timestamp(start, 1)}
    command = {"aggregate": 1, "pipeline": [{"$changeStream": options}], "cursor": {}}
    return parse_request("db", {**command, **fields})


def numbers(batch: Batch) -> list[int]:
    """Return the ``_id`` of each inserted document."""
    return [bson.decode(event)["fullDocument"]["_id"] for event in batch.events]


@dataclass
class ScriptedCluster:
    """A config server and shards, all scripted."""

    config: ScriptedMember
    shards: dict[str, ScriptedMember]
    extra: list[ScriptedMember] = field(default_factory=list)
    registries: list[CursorRegistry] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    noop_writers: list[NoOpWriter] = field(default_factory=list)

    @property
    def members(self) -> list[ScriptedMember]:
        return [self.config, *self.shards.values(), *self.extra]

    def registry(
        self,
        limits: StreamSettings = LIMITS,
        mongos: Lend | None = None,
        **changes: Any,
    ) -> CursorRegistry:
        limits = replace(limits, **changes)
        cluster = Cluster(self.config.host, limits, replica_set=ProbedReplicaSet)
        self.clusters.append(cluster)
        self.registries.append(CursorRegistry(OpenStreams(cluster, limits), mongos=mongos))
        return self.registries[-1]

    def insert(self, *seconds: int, size: int = 0) -> None:
        """Write one event a second, on the shards in turn; then all members advance past it."""
        for second in seconds:
            self.shards[f"s{second % 3}"].insert(second, second, filler="x" * size)
            self.noop(second + 1)

    def noop(self, second: int) -> None:
        for member in self.members:
            member.noop(second)

    @property
    def open_cursors(self) -> int:
        return sum(len(member.cursors) for member in self.members)

    async def close(self) -> None:
        for member in self.members:
            member.stop_waiting()
        for registry in self.registries:
            await registry.close()
        for noop_writer in self.noop_writers:
            await noop_writer.close()
        for cluster in self.clusters:
            await cluster.close()
        for member in self.members:
            await member.stop()


async def read_until(cursor: MergedCursor, count: int) -> list[int]:
    """Read until ``count`` events have arrived; fail if none arrives for a while."""
    found: list[int] = []
    while len(found) < count:
        batch = await cursor.next_batch(None, PATIENCE)
        assert batch.events, f"only {found}"
        found += numbers(batch)
    return found


async def read_through_move(cursor: MergedCursor, count: int) -> list[int]:
    """Read until ``count`` events have arrived; a cursor that changes streams has empty batches."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            found += numbers(await cursor.next_batch(None, PATIENCE))
    return found


async def read_nothing_until(cursor: MergedCursor, condition: Callable[[], bool]) -> None:
    """Read empty batches until ``condition()`` is true; fail if an event arrives."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            assert (await cursor.next_batch(None, 0.01)).events == []


async def read_until_shared(
    cluster: ScriptedCluster, cursors: Sequence[MergedCursor], count: int
) -> list[list[int]]:
    """Read until each cursor has ``count`` events, and one stream's remotes serve them all."""
    found: list[list[int]] = [[] for _ in cursors]
    async with asyncio.timeout(PATIENCE):
        while cluster.open_cursors != REMOTES or any(len(each) != count for each in found):
            for each, cursor in zip(found, cursors, strict=True):
                each += numbers(await cursor.next_batch(None, 0.01))
    return found


def is_tenant(pipeline: Sequence[dict[str, Any]], event: dict[str, Any]) -> bool:
    """Evaluate filters on ``fullDocument.tenant``, as a member's ``matches``."""
    wanted = [stage["$match"]["fullDocument.tenant"] for stage in pipeline if "$match" in stage]
    return all(event.get("fullDocument", {}).get("tenant") == each for each in wanted)


BIG = 70_000
"""The size of an event that fills one block of the log."""

OWNER = Owner()
REMOTES = 4
"""The number of remotes of a stream: three shards and the config server."""


async def start_cluster() -> ScriptedCluster:
    """Return a cluster of three shards; a no-op at second 99 is in every oplog."""
    config = await ScriptedMember("cfg").start()
    shards = {f"s{n}": await ScriptedMember(f"rs{n}").start() for n in range(3)}
    config.documents["shards"] = [{"_id": name, "host": s.host} for name, s in shards.items()]
    cluster = ScriptedCluster(config, shards)
    cluster.noop(99)
    return cluster
