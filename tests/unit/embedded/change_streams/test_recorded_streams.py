"""Streams over the recorded shards' oplogs give what the real shards gave, byte for byte."""

import bson
import pytest
from bson.timestamp import Timestamp

from embedded.change_streams import first_batch_size, open_change_stream
from embedded.change_streams.resume_token import ResumeToken
from shard_client.errors import CommandError
from tests.unit.embedded.change_streams.recorded import (
    Conversation,
    RecordedHost,
    conversations,
    shards,
)

STREAMS = sorted({stream for stream, via in conversations() if via == "shard0"})


@pytest.fixture(scope="module")
def hosts():
    return {shard: RecordedHost(shard) for shard in shards()}


def add_noop(host: RecordedHost, ts: Timestamp) -> None:
    if host.oplog.last_ts < ts:
        noop = {"op": "n", "ns": "", "o": {"msg": "periodic noop"}, "t": 1, "v": 2}
        host.oplog.append({**noop, "ts": ts})


@pytest.mark.parametrize("shard", shards())
@pytest.mark.parametrize("stream", STREAMS)
async def test_batches_are_the_recorded_ones(stream, shard, hosts):
    """Events, postBatchResumeTokens, invalidations and errors, over the whole conversation."""
    talk = conversations()[stream, shard]
    host = RecordedHost(shard)
    for where, recorded in enumerate(talk):
        add_noop(host, recorded.reply["operationTime"])
        if where == 0:
            command = recorded.command
            cursor = (
                open_change_stream(host, "rec" if "other" not in stream else "other", command)
                if not stream.startswith("cluster")
                else open_change_stream(host, "admin", command)
            )
            assert first_batch_size(command) is None
        if recorded.reply["ok"] != 1:
            with pytest.raises(CommandError) as error:
                await cursor.next_batch(None, 0)
            reply = error.value.to_reply()
            wanted = ("ok", "errmsg", "code", "codeName", "errorLabels")
            assert reply == {k: recorded.reply[k] for k in wanted if k in recorded.reply}
            continue
        batch = await cursor.next_batch(None, 0)
        expected = recorded.reply["cursor"]
        assert [e.raw for e in batch.events] == recorded.events
        assert batch.pbrt == expected["postBatchResumeToken"]
        assert batch.invalidated == expected.get("invalidated", False)
        assert batch.closed == (expected["id"] == 0)
        assert cursor.namespace == expected["ns"]
