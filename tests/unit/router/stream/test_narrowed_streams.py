"""Streams of collections and databases that the router reads as parts of a wider stream."""

import asyncio
from random import Random
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.cursors.cursor import MergedCursor
from router.request.stream_request import StreamRequest
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    REMOTES,
    ScriptedCluster,
    numbers,
    read_nothing_until,
    read_through_move,
    read_until,
    read_until_shared,
)
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.narrow_clients import (
    FROM_100,
    explained_by,
    namespaces,
    opened,
    watch,
    with_namespaces,
    write,
)


@pytest.fixture
def cluster(cluster: ScriptedCluster) -> ScriptedCluster:
    """The scripted cluster, whose shards know namespaces and filters."""
    return with_namespaces(cluster)


def end(member: ScriptedMember, second: int, operation: str, **namespace: str) -> str:
    """Write an event that ends streams, and its invalidate; return the invalidate's token."""
    found = {"ns": namespace, "operationType": operation}
    token = member.insert(Timestamp(second, 1), 1, **found)
    last = member.insert(Timestamp(second, 1), 1, ns=namespace).replace("0100296E", "0100296F")
    _, event = member.entries[-1]
    assert event is not None
    event |= {"_id": {"_data": last}, "operationType": "invalidate"}
    assert token < last
    return last


async def kinds_to_the_end(cursor: MergedCursor) -> tuple[list[str], str]:
    """Return the operation types up to the end of a stream, and its last token."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not (batch := await cursor.next_batch(None, PATIENCE)).closed:
            found += [bson.decode(event)["operationType"] for event in batch.events]
    return found, bson.decode(batch.pbrt)["_data"]


async def test_collections_are_read_as_parts_of_their_database(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_scopes="always")
    cursors = await opened(registry, *(f"c{n}" for n in range(20)))
    await until(lambda: cluster.open_cursors == REMOTES)
    (description,) = registry.describe()
    assert description["namespace"] == "db.$cmd.aggregate"
    assert description["filtered"]["namespaces"] == 20
    for second in range(101, 161, 2):
        write(cluster, second, f"c{second % 20}")
    for number, cursor in enumerate(cursors):
        own = [second for second in range(101, 161, 2) if second % 20 == number]
        if own:
            assert await read_until(cursor, len(own)) == own


async def test_the_shards_refuse_the_name_of_a_view(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_scopes="always")
    cluster.config.documents["databases"] = [{"_id": "db", "primary": "s1"}]
    await opened(registry, "a")
    assert cluster.open_cursors == REMOTES
    cluster.shards["s1"].listed = [{"name": "v", "type": "view"}]
    cluster.shards["s1"].fail("aggregate", 166, "Namespace db.v is a view, not a collection")
    with pytest.raises(CommandError) as failure:
        await opened(registry, "v")
    assert failure.value.code == 166
    assert len(registry.describe()) == 1


@pytest.mark.parametrize(
    ("target", "command"), [("config", "find"), ("s1", "listCollections")], ids=["config", "shard"]
)
async def test_a_name_that_the_catalog_does_not_show_is_checked_by_the_shards(
    cluster: ScriptedCluster, target: str, command: str
) -> None:
    registry = cluster.registry(share_scopes="always")
    cluster.config.documents["databases"] = [{"_id": "db", "primary": "s1"}]
    await opened(registry, "a")
    member = cluster.config if target == "config" else cluster.shards[target]
    member.fail(command, 13, "not authorized")
    await opened(registry, "b")
    assert sorted(namespaces(registry)) == ["db.$cmd.aggregate", "db.b"]


async def test_few_collections_keep_their_own_streams_and_many_move(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(
        share_scopes="auto", share_scopes_from=3, share_filters_hold=0.0, share_linger=0.0
    )
    cursors = await opened(registry, "a", "b")
    await until(lambda: cluster.open_cursors == 2 * REMOTES)
    cursors += await opened(registry, "c")
    for second in range(101, 107):
        write(cluster, second, "abc"[second % 3])
    got = await read_until_shared(cluster, cursors, 2)
    assert got == [[102, 105], [103, 106], [101, 104]]
    for cursor in cursors[1:]:
        registry.kill([cursor.cursor_id], OWNER)
    await read_nothing_until(cursors[0], lambda: namespaces(registry) == ["db.a"])
    write(cluster, 111, "a")
    assert await read_until(cursors[0], 1) == [111]
    await until(lambda: cluster.open_cursors == REMOTES)


async def test_streams_leave_a_wider_one_that_reads_many_unwatched_events(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(
        share_scopes="auto", share_scopes_from=2, share_filters_hold=60.0, share_linger=0.0
    )
    cursors = await opened(registry, "a", "b")
    write(cluster, 101, "a")
    write(cluster, 102, "b")
    await read_until_shared(cluster, cursors, 1)
    write(cluster, 103, "unwatched", filler="x" * (1 << 24))
    own = ["db.a", "db.b"]
    await read_nothing_until(cursors[0], lambda: own[0] in namespaces(registry))
    await read_nothing_until(cursors[1], lambda: own[1] in namespaces(registry))
    await until(lambda: sorted(namespaces(registry)) == own)
    explained = explained_by(registry, watch("a"))["scope"]
    assert explained["readFrom"] == "db.a"
    assert "much more than its readers" in explained["reason"]
    write(cluster, 105, "b")
    write(cluster, 107, "a")
    assert [await read_until(each, 1) for each in cursors] == [[107], [105]]


async def test_large_events_that_are_watched_keep_streams_shared(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_scopes="auto", share_scopes_from=2, share_linger=0.0)
    cursors = await opened(registry, "a", "b")
    write(cluster, 101, "a")
    write(cluster, 102, "b")
    await read_until_shared(cluster, cursors, 1)
    write(cluster, 103, "a", filler="x" * (1 << 23))
    write(cluster, 104, "b", filler="x" * (1 << 23))
    assert [await read_until(each, 1) for each in cursors] == [[103], [104]]
    assert await read_until_shared(cluster, cursors, 0) == [[], []]
    assert namespaces(registry) == ["db.$cmd.aggregate"]


async def test_many_databases_share_the_cluster_s_stream(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_scopes="auto", share_scopes_from=2, share_linger=0.0)
    first, _ = await registry.open(watch("a", database="x"), OWNER)
    second, _ = await registry.open(watch(1, database="y"), OWNER)
    write(cluster, 101, "a", database="x")
    write(cluster, 102, "b", database="y")
    write(cluster, 103, "b", database="x")
    write(cluster, 104, "a", database="y")
    assert await read_until(second, 2) == [102, 104]
    assert await read_until(first, 1) == [101]
    await read_nothing_until(first, lambda: namespaces(registry) == ["admin.$cmd.aggregate"])
    end(cluster.shards["s1"], 106, "dropDatabase", db="y")
    cluster.noop(108)
    found, _ = await kinds_to_the_end(second)
    assert found == ["dropDatabase", "invalidate"]
    write(cluster, 111, "a", database="x")
    assert await read_until(first, 1) == [111]


async def test_a_drop_ends_the_collection_s_stream_alone(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_scopes="always")
    a, b = await opened(registry, "a", "b")
    write(cluster, 101, "a")
    token = end(cluster.shards["s0"], 103, "drop", db="db", coll="a")
    write(cluster, 104, "a")
    write(cluster, 105, "b")
    assert await kinds_to_the_end(a) == (["insert", "drop", "invalidate"], token)
    assert await read_until(b, 1) == [105]
    again, _ = await registry.open(watch("a", options={"startAfter": {"_data": token}}), OWNER)
    assert await read_until(again, 1) == [104]


async def test_a_filter_may_leave_out_the_invalidate_but_not_the_end(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_scopes="always")
    match = {"$match": {"fullDocument.tenant": 1}}
    cursor, _ = await registry.open(watch("a", match), OWNER)
    (description,) = registry.describe()
    assert description["namespace"] == "db.$cmd.aggregate"
    write(cluster, 101, "a", tenant=1)
    write(cluster, 102, "a", tenant=2)
    waiting = asyncio.create_task(kinds_to_the_end(cursor))
    token = end(cluster.shards["s0"], 104, "drop", db="db", coll="a")
    cluster.noop(106)
    assert await waiting == (["insert"], token)


async def test_the_end_of_the_database_s_stream_is_not_the_collection_s(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_scopes="always")
    (cursor,) = await opened(registry, "a")
    write(cluster, 101, "a")
    assert await read_until(cursor, 1) == [101]
    end(cluster.shards["s0"], 103, "dropDatabase", db="db")
    cluster.noop(105)
    write(cluster, 107, "a")
    assert await read_through_move(cursor, 1) == [107]
    targets = [command["aggregate"] for command in cluster.shards["s1"].opened]
    assert targets in ([1, "a"], [1, "a", 1]), "it enters no stream that ends at once"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (watch("a", comment="shareScopes=never"), "shareScopes is never"),
        (watch("a", collation={"locale": "en"}), "it has collation"),
        (watch("a", hint="_id_"), "it has hint"),
        (watch("a", options={"showExpandedEvents": True}), "it has the option showExpandedEvents"),
        (watch("a", options={"fullDocument": "required"}), "it has the option fullDocument"),
        (watch("a", {"$redact": "$$KEEP"}), "its filter is left to the shards: it has $redact"),
        (watch(1, options={"allChangesForCluster": True}, database="admin"), "it reads the whole"),
    ],
    ids=["comment", "collation", "hint", "expanded", "required", "redact", "cluster"],
)
async def test_some_streams_stay_their_own(
    cluster: ScriptedCluster, request_: StreamRequest, reason: str
) -> None:
    registry = cluster.registry(share_scopes="always")
    scope = explained_by(registry, request_)["scope"]
    assert scope["readFrom"] == request_.namespace
    assert scope["reason"].startswith(reason)


@pytest.mark.parametrize("comment", ["shareScopes=always", {"shareScopes": "auto"}])
async def test_no_comment_overrides_never(cluster: ScriptedCluster, comment: Any) -> None:
    registry = cluster.registry(share_scopes="never")
    assert "scope" not in explained_by(registry, watch("a", comment=comment))
    await opened(registry, *"abcdefg", comment=comment)
    assert set(namespaces(registry)) == {f"db.{name}" for name in "abcdefg"}


async def test_explain_names_the_stream_that_is_read(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_scopes="always", share_filters="never")
    explained = explained_by(registry, watch("a"))
    assert explained == {
        "scope": {
            "readFrom": "db.$cmd.aggregate",
            "shareScopes": "always",
            "reason": "shareScopes is always",
        }
    }
    match = {"$match": {"fullDocument.tenant": 1}}
    refused = explained_by(registry, watch("a", match))
    assert refused["scope"]["readFrom"] == "db.a"
    assert refused["filter"]["evaluatedBy"] == "shards"


@pytest.mark.parametrize(
    "limits",
    [
        {"share_scopes": "always"},
        {"share_scopes": "auto", "share_scopes_from": 4, "share_filters_hold": 0.0},
    ],
    ids=["always", "auto"],
)
async def test_random_readers_get_the_events_of_their_collections(
    cluster: ScriptedCluster, limits: dict[str, Any]
) -> None:
    random = Random(11)
    registry = cluster.registry(**limits, share_log_bytes=300_000)
    written: dict[int, str] = {}
    results: list[tuple[str, list[int]]] = []

    async def client(number: int) -> None:
        wanted = "abcd"[number % 4]
        options: dict[str, Any] = FROM_100
        got: list[int] = []
        for _ in range(4):
            cursor, _ = await registry.open(watch(wanted, options=options), OWNER)
            for _ in range(random.randrange(1, 6)):
                batch = await cursor.next_batch(random.choice((None, 1, 3)), 0.02)
                got += numbers(batch)
                options = {"resumeAfter": bson.decode(batch.pbrt)}
            registry.kill([cursor.cursor_id], OWNER)
        cursor, _ = await registry.open(watch(wanted, options=options), OWNER)
        async with asyncio.timeout(PATIENCE):
            while 600 not in got:
                got += numbers(await cursor.next_batch(None, 0.05))
        results.append((wanted, got))

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    for second in range(101, 301):
        written[second] = random.choice("abcdef")
        write(cluster, second, written[second], filler="x" * random.choice((0, 0, 5000)))
        if random.random() < 0.2:
            await asyncio.sleep(0.002)
    for number, name in enumerate("abcd"):
        ts = Timestamp(600, number + 1)
        namespace = {"db": "db", "coll": name}
        cluster.shards["s0"].insert(ts, 1, ns=namespace, fullDocument={"_id": 600})
    cluster.noop(601)
    await asyncio.gather(*clients)
    for wanted, got in results:
        assert got == [second for second, name in written.items() if name == wanted] + [600]
