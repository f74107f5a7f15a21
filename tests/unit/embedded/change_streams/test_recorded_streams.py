"""Streams over the recorded oplogs return the real shards' batches, byte for byte."""

import bson
import pytest
from bson.timestamp import Timestamp

from embedded.change_streams import first_batch_size, open_change_stream
from shard_client.bson.resume_token import ResumeToken
from shard_client.errors import CommandError
from tests.doubles.recorded_host import (
    Conversation,
    RecordedHost,
    conversations,
    shards,
)

STREAMS = sorted({stream for stream, via in conversations() if via == "shard0"})


def database(stream: str) -> str:
    if stream.startswith("cluster"):
        return "admin"
    return "other" if stream == "db-other" else "rec"


def add_noop(host: RecordedHost, ts: Timestamp) -> None:
    if host.oplog.last_ts < ts:
        noop = {"op": "n", "ns": "", "o": {"msg": "periodic noop"}, "t": 1, "v": 2}
        host.oplog.append({**noop, "ts": ts})


def with_token(talk: list[Conversation], option: str, token: object) -> dict:
    command = bson.decode(bson.encode(talk[0].command))
    options = command["pipeline"][0]["$changeStream"]
    del options["startAtOperationTime"]
    options[option] = token
    return command


async def drained(cursor, batch_size=None) -> list[bytes]:
    """Return all events up to the end of the oplog or of the stream."""
    found: list[bytes] = []
    while True:
        batch = await cursor.next_batch(batch_size, 0)
        found += [event.raw for event in batch.events]
        if batch.closed or not batch.events:
            return found


@pytest.mark.parametrize("shard", shards())
@pytest.mark.parametrize("stream", STREAMS)
async def test_batches_equal_the_recorded_ones(stream, shard):
    """Events, postBatchResumeTokens, invalidations and errors, over the whole conversation."""
    talk = conversations()[stream, shard]
    host = RecordedHost(shard)
    add_noop(host, talk[0].reply["operationTime"])
    assert first_batch_size(talk[0].command) is None
    cursor = open_change_stream(host, database(stream), talk[0].command)
    for recorded in talk:
        add_noop(host, recorded.reply["operationTime"])
        if recorded.reply["ok"] != 1:
            with pytest.raises(CommandError) as error:
                await cursor.next_batch(None, 0)
            wanted = ("ok", "errmsg", "code", "codeName", "errorLabels")
            assert error.value.to_reply() == {
                key: recorded.reply[key] for key in wanted if key in recorded.reply
            }
            continue
        batch = await cursor.next_batch(None, 0)
        expected = recorded.reply["cursor"]
        assert [event.raw for event in batch.events] == recorded.events
        assert batch.pbrt == expected["postBatchResumeToken"]
        assert batch.invalidated == expected.get("invalidated", False)
        assert batch.closed == (expected["id"] == 0)
        assert cursor.namespace == expected["ns"]


@pytest.mark.parametrize("shard", shards())
@pytest.mark.parametrize(
    "stream", ["cluster-expanded", "db", "coll-orders", "db-match", "coll-big-split"]
)
async def test_resuming_after_any_event_gives_the_rest(stream, shard):
    talk = conversations()[stream, shard]
    host = RecordedHost(shard)
    history = [event for recorded in talk for event in recorded.events]
    step = max(1, len(history) // 16)
    for cut in range(0, len(history), step):
        event = bson.decode(history[cut])
        option = "startAfter" if ResumeToken.parse(event["_id"]).from_invalidate else "resumeAfter"
        command = with_token(talk, option, event["_id"])
        cursor = open_change_stream(host, database(stream), command)
        first = await cursor.next_batch(0, 0)
        assert (first.events, first.pbrt) == ([], event["_id"])
        rest = await drained(cursor)
        if option == "startAfter":
            assert all(bson.decode(raw)["clusterTime"] > event["clusterTime"] for raw in rest)
        else:
            assert rest == history[cut + 1 :]


@pytest.mark.parametrize("batch_size", [1, 2, 50])
async def test_batch_sizes_and_pbrts(batch_size):
    """Batches of any size have the same events, and a full batch promises its last event."""
    talk = conversations()["cluster", "shard0"]
    host = RecordedHost("shard0")
    add_noop(host, talk[0].reply["operationTime"])
    cursor = open_change_stream(host, "admin", talk[0].command)
    found: list[bytes] = []
    promised = ""
    while (batch := await cursor.next_batch(batch_size, 0)).events:
        assert len(batch.events) <= batch_size
        assert batch.events[0]["_id"]["_data"] > promised
        promised = batch.pbrt["_data"]
        if len(batch.events) == batch_size:
            assert dict(batch.events[-1]["_id"]) == batch.pbrt
        found += [event.raw for event in batch.events]
    assert found == [event for recorded in talk for event in recorded.events]
    assert batch.pbrt == ResumeToken.high_water_mark(host.oplog.last_ts, 1).document


async def test_a_high_water_mark_resumes_between_events():
    talk = conversations()["db", "shard1"]
    host = RecordedHost("shard1")
    history = [bson.decode(event) for recorded in talk for event in recorded.events]
    middle = history[90]["clusterTime"]
    mark = ResumeToken.high_water_mark(middle, 1).document
    for option, value in (("resumeAfter", mark), ("startAtOperationTime", middle)):
        command = with_token(talk, option, value)
        rest = await drained(open_change_stream(host, "rec", command))
        assert [bson.decode(raw) for raw in rest] == [
            event for event in history if event["clusterTime"] >= middle
        ]


async def test_a_token_that_is_not_found_is_fatal():
    talk = conversations()["db", "shard1"]
    host = RecordedHost("shard1")
    event = bson.decode(talk[0].events[3])
    token = ResumeToken.parse(event["_id"])
    other = ResumeToken.of_event(token.cluster_time, 1, {"_id": "none"}, uuid=token.uuid)
    cursor = open_change_stream(host, "rec", with_token(talk, "resumeAfter", other.document))
    await cursor.next_batch(0, 0)
    with pytest.raises(CommandError) as error:
        await cursor.next_batch(None, 0)
    assert error.value.code == 280
    assert error.value.labels == {"NonResumableChangeStreamError"}
    assert "cannot resume stream; the resume token was not found. {_data: " in error.value.message


async def test_a_match_that_hides_the_resume_point_is_fatal():
    talk = conversations()["db", "shard0"]
    host = RecordedHost("shard0")
    event = bson.decode(talk[0].events[3])
    command = with_token(talk, "resumeAfter", event["_id"])
    command["pipeline"].append({"$match": {"operationType": "drop"}})
    with pytest.raises(CommandError) as error:
        await drained(open_change_stream(host, "rec", command))
    assert error.value.code == 280


async def test_start_after_another_shard_s_invalidate_skips_one():
    talk = conversations()["coll-orders", "shard1"]
    host = RecordedHost("shard1")
    drop, invalidate = (bson.decode(raw) for raw in talk[-1].events[-2:])
    earlier = ResumeToken.parse(invalidate["_id"])
    before = Timestamp(earlier.cluster_time.time, earlier.cluster_time.inc - 1)
    other = ResumeToken.of_event(before, 1, None, from_invalidate=True, uuid=earlier.uuid)
    command = with_token(talk, "startAfter", other.document)
    cursor = open_change_stream(host, "rec", command)
    with pytest.raises(CommandError) as error:
        await cursor.next_batch(None, 0)
    assert error.value.code == 280, "a client's stream requires the event of its token"
    command = with_token(talk, "startAtOperationTime", drop["clusterTime"])
    batch = await open_change_stream(host, "rec", command).next_batch(None, 0)
    assert [event["operationType"] for event in batch.events] == ["drop", "invalidate"]
    command = with_token(talk, "startAfter", invalidate["_id"])
    batch = await open_change_stream(host, "rec", command).next_batch(None, 0)
    assert (batch.events, batch.closed) == ([], False)
