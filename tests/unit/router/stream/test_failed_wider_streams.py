"""A wider stream that fails is left by its clients, and not entered for a while."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from router.request.stream_request import StreamRequest
from router.stream import sharing
from router.stream.admission import Quota
from router.stream.client_reader import ClientReader
from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.doubles.scripted_cluster import (
    ScriptedCluster,
    read_through_move,
    read_until,
)
from tests.harness.until import PATIENCE
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


async def test_a_wider_stream_that_cannot_be_opened_is_tried_once(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = cluster.registry(share_scopes="always")
    open_streams = registry._streams
    enter, tried = open_streams.find_or_open, []

    async def refuse(request: StreamRequest, *args: Any) -> Any:
        if request.collection is None:
            tried.append(request)
            raise CommandError(10334, "BSONObj size is invalid")
        return await enter(request, *args)

    monkeypatch.setattr(open_streams, "find_or_open", refuse)
    cursors = await opened(registry, "a", "b", "c")
    assert sorted(namespaces(registry)) == ["db.a", "db.b", "db.c"]
    assert len(tried) == 1
    write(cluster, 101, "c")
    assert await read_until(cursors[2], 1) == [101]


async def test_an_outage_is_waited_for_once(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = cluster.registry(share_scopes="always", open_timeout=0.0)
    tried = []

    async def hang(request: StreamRequest, *args: Any) -> Any:
        tried.append(request.namespace)
        raise CommandError(133, "no answer within 30 s", labels=(RESUMABLE_LABEL,))

    monkeypatch.setattr(registry._streams, "find_or_open", hang)
    with pytest.raises(CommandError, match="no answer"):
        await opened(registry, "a")
    assert tried == ["db.$cmd.aggregate"]


async def test_a_refusal_of_one_client_s_stream_does_not_affect_others(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_scopes="always", max_streams_per_client=2)
    one, another = Quota("1.1.1.1"), Quota("2.2.2.2")
    streams = registry._streams
    for name in "ab":
        await ClientReader.open(streams, watch(name, comment="shareScopes=never"), one)
    own = await ClientReader.open(streams, watch("b"), one)
    wider = await ClientReader.open(streams, watch("b"), another)
    assert own.stream is not None
    assert wider.stream is not None
    assert own.stream.describe(())["namespace"] == "db.b"
    assert wider.stream.describe(())["namespace"] == "db.$cmd.aggregate"
