"""Streams of collections and databases that the router reads as parts of a wider stream."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Timestamp
from structlog.testing import capture_logs

from router.cursors.cursor import MergedCursor
from router.request.stream_request import StreamRequest
from router.stream import sharing
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    REMOTES,
    ScriptedCluster,
    read_nothing_until,
    read_through_move,
    read_until,
    read_until_shared,
)
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.clients import fail_remote
from tests.unit.router.stream.narrow_clients import (
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


async def test_an_error_in_another_collection_moves_a_stream_to_its_own_remotes(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_scopes="always")
    (cursor,) = await opened(registry, "a")
    write(cluster, 101, "a")
    assert await read_until(cursor, 1) == [101]
    message = 'BSONObj size is invalid. First element: _id: { _data: "826B02" }'
    with capture_logs() as logs:
        fail_remote(cursor, CommandError(10334, message))
        write(cluster, 103, "a")
        assert await read_through_move(cursor, 1) == [103]
    assert namespaces(registry) == ["db.a"]
    # Further clients do not enter the wider stream either, for a while.
    (other,) = await opened(registry, "b")
    assert sorted(namespaces(registry)) == ["db.a", "db.b"]
    targets = [command["aggregate"] for command in cluster.shards["s1"].opened]
    assert targets == [1, "a", "b"]
    scope = explained_by(registry, watch("b"))["scope"]
    assert scope["readFrom"] == "db.b"
    assert scope["reason"].startswith("the shared stream failed and is not read for")
    # The message quotes an event that this client may not be allowed to read; the log has it.
    assert scope["reason"].endswith(" s: BSONObjectTooLarge")
    (avoided,) = [each for each in logs if each["event"] == "a shared stream is avoided"]
    assert message in avoided["error"]
    write(cluster, 105, "b")
    assert await read_until(other, 1) == [105]


async def test_streams_return_to_a_wider_one_a_while_after_it_failed(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "FIRST_PAUSE", 0.05)
    registry = cluster.registry(share_scopes="always", share_linger=0.0)
    cursors = await opened(registry, "a", "b")
    write(cluster, 101, "a")
    write(cluster, 102, "b")
    assert [await read_until(each, 1) for each in cursors] == [[101], [102]]
    error = CommandError(10334, "BSONObj size is invalid")
    fail_remote(cursors[0], error)
    write(cluster, 103, "a")
    write(cluster, 104, "b")
    assert [await read_through_move(each, 1) for each in cursors] == [[103], [104]]
    cluster.noop(106)  # beyond an event a client cannot enter a wider stream
    async with asyncio.timeout(PATIENCE):
        while registry.moves != (2, 2):
            for cursor in cursors:
                assert (await cursor.next_batch(None, 0.01)).events == []
    assert namespaces(registry) == ["db.$cmd.aggregate"]
    write(cluster, 107, "b")
    write(cluster, 108, "a")
    assert [await read_until(each, 1) for each in cursors] == [[108], [107]]
    assert registry.moves == (2, 2)
