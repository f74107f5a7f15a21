"""Streams of collections, databases and filters that are parts of a wider stream."""

import asyncio
from collections.abc import Sequence
from typing import Any

import bson
import pytest
from structlog.testing import capture_logs

from router.cursors.cursor import MergedCursor
from router.cursors.registry import CursorRegistry
from router.filters.index import FilterIndex
from router.request.stream_request import StreamRequest
from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    REMOTES,
    ScriptedCluster,
    read_nothing_until,
    read_through_move,
    read_until,
    read_until_shared,
)
from tests.filters.chance import document
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


async def test_an_error_in_another_collection_moves_a_stream_to_its_own_remotes(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_scopes="always")
    (cursor,) = await opened(registry, "a")
    write(cluster, 101, "a")
    assert await read_until(cursor, 1) == [101]
    message = 'BSONObj size is invalid. First element: _id: { _data: "826B02" }'
    with capture_logs() as logs:
        running = cursor.running_stream
        assert running is not None
        remote = running._remotes.get(1)
        assert remote is not None
        running.remote_failed(remote, CommandError(10334, message))
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


def tenant(number: int, **fields: Any) -> StreamRequest:
    """Return a request for the events of one tenant in a database."""
    return watch(1, {"$match": {"fullDocument.tenant": number}}, **fields)


async def tenants(registry: CursorRegistry, *numbers: int, **fields: Any) -> list[MergedCursor]:
    return [(await registry.open(tenant(each, **fields), OWNER))[0] for each in numbers]


async def test_few_filters_stay_on_the_shards_and_many_move_over(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_filters_from=3, share_filters_hold=0.0, share_linger=0.0)
    cursors = await tenants(registry, 0, 1)
    assert cluster.open_cursors == 2 * REMOTES
    assert "filtered" not in next(registry.describe_streams())
    cursors += await tenants(registry, 2)
    for second in range(101, 107):
        write(cluster, second, "c", tenant=second % 3)
    got = await read_until_shared(cluster, cursors, 2)
    assert got == [[102, 105], [103, 106], [101, 104]]
    # With a single one left, its filter goes back to the shards.
    for cursor in cursors[1:]:
        registry.kill([cursor.cursor_id])

    def on_shards() -> bool:
        return "filtered" not in next(registry.describe_streams(), {"filtered": {}})

    await read_nothing_until(cursors[0], on_shards)
    write(cluster, 111, "c", tenant=0)
    assert await read_until(cursors[0], 1) == [111]
    await until(lambda: cluster.open_cursors == REMOTES)


@pytest.mark.parametrize(
    ("mode", "comment", "streams"),
    [
        ("never", None, 2),
        ("always", None, 1),
        ("never", "reporting; shareFilters=always", 2),
        ("never", {"shareFilters": "auto"}, 2),
        ("auto", "reporting; shareFilters=always", 1),
        ("always", {"shareFilters": "never"}, 2),
        ("always", {"shareFilters": "perhaps"}, 1),
    ],
)
async def test_the_mode_is_a_parameter_or_in_the_comment(
    cluster: ScriptedCluster, mode: str, comment: Any, streams: int
) -> None:
    registry = cluster.registry(share_filters=mode)
    more = {} if comment is None else {"comment": comment}
    await tenants(registry, 1, 2, **more)
    assert cluster.open_cursors == streams * REMOTES
    explained = explained_by(registry, tenant(1, **more))["filter"]
    assert explained["evaluatedBy"] == ("router" if streams == 1 else "shards")


async def test_always_holds_for_a_client_that_is_too_late_for_a_wider_stream(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_filters="always", share_scopes_from=2, share_behind=5.0)
    cluster.noop(200)
    await opened(registry, "a", "b", options={})
    late, _ = await registry.open(watch("a", {"$match": {"fullDocument.tenant": 1}}), OWNER)
    assert late.running_stream is not None
    shown = late.running_stream.describe(())
    assert (shown["namespace"], shown["pipeline"], "filtered" in shown) == ("db.a", "", True)


async def test_null_follows_the_servers_version(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_filters="always")
    request = watch(1, {"$match": {"fullDocument.a": None}})
    await registry.open(request, OWNER)
    undefined = document(b"\x03fullDocument\0" + document(b"\x06a\0"))
    for version, met in ((17, True), (24, True), (25, False)):
        for target in ("config", *cluster.shards):
            cluster.clusters[0].versions.record(target, {"maxWireVersion": version})
        (source,) = registry.streams.policy.candidates(request).filters.sources
        assert source.filter is not None
        index: FilterIndex[int] = FilterIndex()
        index.add(0, source.filter)
        assert bool(index.route([undefined])) is met


@pytest.mark.parametrize("at_opening", [True, False])
async def test_a_shared_stream_that_cannot_be_opened_leaves_a_client_on_its_own(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, at_opening: bool
) -> None:
    registry = cluster.registry(share_filters_from=2, share_linger=0.0)
    open_streams = registry.streams
    enter, refused = open_streams.find_or_open, []

    async def refuse(request: StreamRequest, *args: Any) -> Any:
        if not request.stages:
            refused.append(request)
            raise CommandError(133, "no answer from s1", labels=(RESUMABLE_LABEL,))
        return await enter(request, *args)

    monkeypatch.setattr(open_streams, "find_or_open", refuse)
    # The second one begins the sharing: at its opening, and by a move of the first one.
    cursors = await tenants(registry, 1, 2)
    read = cursors[at_opening]
    async with asyncio.timeout(PATIENCE):
        while not refused:
            assert (await read.next_batch(None, 0.01)).events == []
    for second in (101, 103):
        write(cluster, second, "c", tenant=1 + at_opening)
    assert await read_through_move(read, 2) == [101, 103]
    assert len(refused) == 1, "it is not tried again for a while"


async def test_a_shard_s_outage_does_not_keep_clients_from_sharing(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_filters="always", open_timeout=0.3)
    port = cluster.shards["s1"].port
    await cluster.shards["s1"].stop()
    with pytest.raises(CommandError) as outage:
        await registry.open(tenant(1, options={}), OWNER)
    assert RESUMABLE_LABEL in outage.value.labels
    await cluster.shards["s1"].start(port)
    assert (
        explained_by(registry, tenant(1, options={}))["filter"]["reason"]
        == "shareFilters is always"
    )
    cursor, _ = await registry.open(tenant(1, options={}), OWNER)
    assert cursor.running_stream is not None
    assert "filtered" in cursor.running_stream.describe(())


async def test_readers_stay_on_the_shared_stream_if_the_limit_of_streams_is_reached(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(
        share_filters_from=3, share_filters_hold=60.0, share_linger=0.0, max_streams=4
    )
    cursors = await tenants(registry, *range(8))
    for second in range(101, 109):
        write(cluster, second, "c", tenant=second - 101)
    assert await read_until_shared(cluster, cursors, 1) == [[n] for n in range(101, 109)]
    # The planner finds own streams cheaper from now on; nothing is wrong with the shared one.
    write(cluster, 110, "c", tenant=99, filler="x" * (1 << 24))
    for cursor in cursors * 20:
        assert (await cursor.next_batch(None, 0.01)).events == []
    for second in range(111, 119):
        write(cluster, second, "c", tenant=second - 111)
    got = [await read_through_move(cursor, 1) for cursor in cursors]
    assert got == [[n] for n in range(111, 119)]


def shows(pipeline: Sequence[dict[str, Any]], event: dict[str, Any]) -> bool:
    expanded = pipeline[0]["$changeStream"].get("showExpandedEvents", False)
    return event["operationType"] != "reshardCollection" or expanded


@pytest.mark.parametrize("how", ["moveCollection", "unshardCollection"])
@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("share", ["never", "always"])
async def test_no_event_is_lost_when_a_collection_moves_to_another_shard(
    cluster: ScriptedCluster, how: str, expanded: bool, share: str
) -> None:
    """The commands of MongoDB 8.0; docs/protocol.md#definitions-of-collections."""
    namespace, former, present = {"db": "db", "coll": "c"}, "AA" * 16, "BB" * 16
    cluster.config.documents["databases"] = [{"_id": "db", "primary": "s0"}]
    for member in cluster.shards.values():
        member.matches = shows
    cluster.shards["s0"].insert(101, 1, former, ns=namespace)
    cluster.shards["s0"].insert(102, 2, former, ns=namespace)
    for second in (103, 104):  # newer servers may write it more than once
        cluster.shards["s0"].insert(
            second, second - 100, former, ns=namespace, operationType="reshardCollection",
            operationDescription={"reshardUUID": present, "provenance": how},
        )  # fmt: skip
    cluster.shards["s1"].insert(105, 5, present, ns=namespace)
    cluster.shards["s1"].insert(106, 6, present, ns=namespace)
    cluster.noop(107)
    expected = [1, 2, 3, 4, 5, 6] if expanded else [1, 2, 5, 6]
    options: dict[str, Any] = {"showExpandedEvents": True} if expanded else {}

    async def read(start: dict[str, Any], count: int) -> list[dict[str, Any]]:
        registry = cluster.registry(share_scopes=share)
        request = watch("c", options={**options, **start})
        cursor, _ = await registry.open(request, OWNER)
        found: list[bytes] = []
        while len(found) < count:
            found += (batch := await cursor.next_batch(None, PATIENCE)).events
            assert not batch.closed
        if start == FROM_100:
            wider = share == "always" and not expanded
            assert namespaces(registry) == ["db.$cmd.aggregate" if wider else "db.c"]
        return [bson.decode(event) for event in found]

    events = await read(FROM_100, len(expected))
    assert [event["fullDocument"]["_id"] for event in events] == expected
    for number, event in enumerate(events):
        following = await read({"resumeAfter": event["_id"]}, len(events) - number - 1)
        assert following == events[number + 1 :]
