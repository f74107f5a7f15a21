"""Opening a stream: skipping events up to the token, and failures during the opening."""

import asyncio

import pytest
from bson import Timestamp

from router.request.stream_request import parse_request
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_member import event_token
from tests.harness.until import PATIENCE


async def test_skipped_events_free_the_budget(cluster: ScriptedCluster):
    """Events up to the token fill the budget and are dropped, so that the next one fits."""
    registry = cluster.registry(
        remote_buffer_bytes=2000, stream_buffer_bytes=4000, batch_target_bytes=500
    )
    time = Timestamp(101, 1)
    for number in range(1, 301):
        cluster.shards["s1"].insert(time, number, fullDocument={"_id": number, "pad": "x" * 40})
    cluster.noop(102)
    options = {"resumeAfter": {"_data": event_token(time, 299)}}
    command = {"aggregate": 1, "pipeline": [{"$changeStream": options}], "cursor": {}}
    cursor, _ = await registry.open(parse_request("db", command), OWNER)
    assert await read_until(cursor, 1) == [300]


async def test_a_get_more_that_fails_during_the_opening_fails_it(cluster: ScriptedCluster):
    registry = cluster.registry(open_timeout=2 * PATIENCE, close_timeout=0.5)
    cluster.shards["s0"].hang.add("aggregate")
    cluster.shards["s2"].fail("getMore", 286, "resume point lost")
    async with asyncio.timeout(PATIENCE):
        cursor, first = await registry.open(stream(), OWNER)
        assert not first.closed
        assert first.events == []
        with pytest.raises(CommandError) as failure:
            await cursor.next_batch(None, PATIENCE)
    assert failure.value.code == 286
    assert failure.value.message.startswith("Error on remote shard 127.0.0.1:")
