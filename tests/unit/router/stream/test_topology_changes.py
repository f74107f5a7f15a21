"""A merged stream while shards join, drain and leave."""

import asyncio

import pytest
from bson.timestamp import Timestamp

from router.catalog.cluster_time import connections_to
from router.cursors.registry import CursorRegistry
from router.stream.merge.shard_membership import Membership, ShardSpan, covers_all
from shard_client.bson.resume_token import first_key
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.replica_set.replica_set import PRIMARY
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_streams import batch, hwm
from tests.harness.until import PATIENCE, until
from tests.unit.router.made_tokens import data_of, event
from tests.unit.router.stream.streams_by_hand import CONFIG, A, B, arrive, opened, times


def draining(shard: str, time: int, upto: int, yes: bool = True) -> CursorBatch:
    changed = {"updatedFields": {"draining": True}} if yes else {"removedFields": ["draining"]}
    update = {"documentKey": {"_id": shard}, "updateDescription": changed}
    told = event(data_of(time, 1), operationType="update", **update)
    return batch([told], hwm(upto))


def test_a_draining_shard_missing_from_the_list_has_left():
    """6.0 reports that a shard drains, but not that it is removed."""
    stream = opened()
    stream.batch_arrived(CONFIG, draining("shard1", 20, 50))
    assert stream.membership.draining == {"shard1"}
    both = {"shard0", "shard1"}
    stream.membership.apply_list(both, {"shard1"}, Timestamp(30, 1))
    assert stream.laggards() == {}
    stream.membership.apply_list({"shard0"}, set(), Timestamp(40, 1))
    assert stream.membership.draining == set()
    assert stream.laggards() == {B: Timestamp(40, 2)}
    arrive(stream, A, upto=50)
    assert B in stream.merger.remotes
    arrive(stream, B, 15, 39, upto=41)
    assert B not in stream.merger.remotes
    assert times(stream.take(None).events) == [15, 39]


def test_a_shard_that_stopped_draining_is_kept():
    stream = opened()
    stream.batch_arrived(CONFIG, draining("shard1", 20, 30))
    stream.batch_arrived(CONFIG, draining("shard1", 35, 50, yes=False))
    assert stream.membership.draining == set()
    stream.membership.apply_list({"shard0"}, set(), Timestamp(40, 1))
    arrive(stream, B, upto=50)
    assert B in stream.merger.remotes


EARLY, THEN, LATER = Timestamp(5, 1), Timestamp(10, 1), Timestamp(20, 1)
KEY = first_key(THEN)
HOST = "rs/h:1"


def part(since: Timestamp = EARLY, until: Timestamp | None = None, shard: str = "s") -> ShardSpan:
    return ShardSpan(shard, HOST, since, None if until is None else first_key(until))


@pytest.mark.parametrize(
    ("has", "needs", "serves"),
    [
        ([part()], [part()], True),
        ([], [part()], False),
        ([part(shard="other")], [part()], False),
        ([part(since=THEN)], [part()], True),
        ([part(since=LATER)], [part()], False),
        ([part(since=LATER)], [part(since=LATER)], True),
        ([part(until=LATER)], [part()], True),
        ([part()], [part(until=LATER)], True),
        ([part(until=LATER)], [part(until=LATER)], True),
        ([part(until=THEN)], [part(until=LATER)], False),
        ([part(since=LATER)], [part(until=LATER), part(since=LATER)], False),
        ([part(until=LATER), part(since=LATER)], [part(until=LATER), part(since=LATER)], True),
    ],
)
def test_a_stream_serves_clients_whose_spans_it_covers(
    has: list[ShardSpan], needs: list[ShardSpan], serves: bool
) -> None:
    assert covers_all(set(has), set(needs), KEY) is serves


_NAMESPACE = {"db": "config", "coll": "shards"}


def targets(registry: CursorRegistry) -> list[str]:
    """Return the targets of the remotes of the first stream."""
    return [each["target"] for each in next(registry.describe_streams())["remotes"]]


def drain(cluster: ScriptedCluster) -> None:
    """Let the shard s1 drain."""
    for document in cluster.config.documents["shards"]:
        if document["_id"] == "s1":
            document["draining"] = True
    cluster.config.insert(
        103,
        3,
        operationType="update",
        documentKey={"_id": "s1"},
        updateDescription={"updatedFields": {"draining": True}},
        ns=_NAMESPACE,
    )
    cluster.noop(104)


def unlist(cluster: ScriptedCluster) -> None:
    """Take the shard s1 from the list."""
    left = [each for each in cluster.config.documents["shards"] if each["_id"] != "s1"]
    cluster.config.documents["shards"] = left


async def test_a_removal_without_an_event_is_noticed(cluster: ScriptedCluster):
    """As on 6.0, the shard drains and later is missing from the list."""
    registry = cluster.registry(removed_shards_interval=0.01)
    cursor, _ = await registry.open(stream(), OWNER)
    drain(cluster)
    listed = cluster.config.commands["find"]
    await until(lambda: cluster.config.commands["find"] > listed + 1)
    assert targets(registry).count("s1") == 1
    unlist(cluster)
    assert cursor.running_stream is not None
    merged = cursor.running_stream.merged
    remotes = merged.merger.remotes
    await until(lambda: [remotes[each].target for each in merged.membership.leaving] == ["s1"])
    cluster.noop(200)  # watermarks beyond the time when the list was read
    await until(lambda: "s1" not in targets(registry))
    listed = cluster.config.commands["find"]
    cluster.shards["s0"].insert(201, 2)
    cluster.noop(202)
    assert (await read_until(cursor, 1))[-1] == 2
    assert cluster.config.commands["find"] <= listed + 1


async def test_a_stream_that_cannot_watch_a_draining_shard_fails(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not notice that the shard has left, and wait for it without end."""
    registry = cluster.registry(removed_shards_interval=0.01)
    cursor, _ = await registry.open(stream(), OWNER)
    monkeypatch.setattr(Membership, "apply_list", None)
    drain(cluster)
    with pytest.raises(CommandError) as caught:
        await read_until(cursor, 1)
    assert RESUMABLE_LABEL in caught.value.labels


async def test_lost_history_of_the_config_server_is_resumable(cluster: ScriptedCluster):
    """A resumed stream reads the shard list again, so unlike a shard's this error is resumable."""
    cursor, _ = await cluster.registry().open(stream(), OWNER)
    cluster.config.fail("getMore", 286, "Resume of change stream was not possible")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(CommandError, match="was not possible") as failure:  # noqa: PT012
            while True:
                await cursor.next_batch(None, 0.1)
    assert (failure.value.code, failure.value.labels) == (234, {RESUMABLE_LABEL})


async def test_a_shard_removed_during_an_opening_is_still_read(cluster: ScriptedCluster):
    """The opening has an older list, while other readers already have the new one."""
    cluster.registry()
    router = cluster.clusters[0]
    shards = (await router.shards()).hosts
    unlist(cluster)
    await router.shards()
    async with connections_to(router, shards, PRIMARY, 2.0) as connections:
        assert connections.keys() == {"s0", "s1", "s2"}
