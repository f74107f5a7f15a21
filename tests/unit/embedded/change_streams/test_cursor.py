"""One cursor: waiting, ending, images and limits."""

import asyncio

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded.images import Images
from shard_client.bson.resume_token import ResumeToken
from shard_client.errors import CommandError
from tests.doubles.handmade_host import (
    UUID_A,
    HandmadeHost,
    inserted,
)


def ids(batch):
    return [event["documentKey"]["_id"] for event in batch.events]


async def test_an_entry_wakes_a_waiting_get_more():
    host = HandmadeHost()
    cursor = host.watch()
    await cursor.next_batch(0, 0)
    waiting = asyncio.create_task(cursor.next_batch(None, 60))
    await asyncio.sleep(0)
    host.noop()
    host.insert("other.a", {"_id": 1})
    await asyncio.sleep(0)
    assert not waiting.done(), "an entry without an event does not wake it"
    host.insert("db.a", {"_id": 2})
    assert ids(await waiting) == [2]


async def test_the_pbrt_of_an_empty_batch_is_the_end_of_the_oplog():
    host = HandmadeHost()
    cursor = host.watch()
    await cursor.next_batch(0, 0)
    last = host.noop()
    batch = await cursor.next_batch(None, 0.001)
    assert batch == ([], ResumeToken.high_water_mark(last, 1).document, False, False)


async def test_closing_ends_a_waiting_get_more():
    host = HandmadeHost()
    cursor = host.watch()
    await cursor.next_batch(0, 0)
    waiting = asyncio.create_task(cursor.next_batch(None, 60))
    await asyncio.sleep(0)
    cursor.close()
    with pytest.raises(CommandError) as error:
        await waiting
    assert error.value.code == 237


@pytest.mark.parametrize(
    ("on", "command", "ends"),
    [
        (("db", "a"), {"drop": "a"}, True),
        (("db", "b"), {"drop": "a"}, False),
        (("db", "a"), {"renameCollection": "db.a", "to": "db.b"}, True),
        (("db", "b"), {"renameCollection": "db.a", "to": "db.b"}, True),
        (("db", 1), {"drop": "a"}, False),
        (("db", 1), {"dropDatabase": 1}, True),
        (("db", "a"), {"dropDatabase": 1}, False),
    ],
)
async def test_streams_are_invalidated_by_their_namespace_s_changes(on, command, ends):
    host = HandmadeHost()
    host.command("db", command, ui=UUID_A)
    host.insert("db.a", {"_id": 1})
    batch = await host.watch(on=on).next_batch(None, 0)
    assert batch.invalidated == batch.closed == ends
    if ends:
        cause, invalidate = batch.events
        assert list(invalidate) == ["_id", "operationType", "clusterTime", "wallTime"]
        before, after = ResumeToken.parse(cause["_id"]), ResumeToken.parse(invalidate["_id"])
        assert (before.from_invalidate, after.from_invalidate) == (False, True)
        assert before.cluster_time == after.cluster_time
        assert dict(invalidate["_id"]) == batch.pbrt


async def test_a_full_batch_defers_the_end_to_the_next():
    host = HandmadeHost()
    host.drop("db", "a")
    cursor = host.watch(on=("db", "a"))
    batch = await cursor.next_batch(2, 0)
    assert (len(batch.events), batch.closed) == (2, False)
    last = await cursor.next_batch(2, 60)
    assert last == ([], batch.pbrt, True, True)


async def test_a_filtered_invalidate_still_ends_the_stream():
    host = HandmadeHost()
    host.drop("db", "a")
    cursor = host.watch({"$match": {"operationType": "insert"}}, on=("db", "a"))
    batch = await cursor.next_batch(None, 0)
    assert (batch.events, batch.closed, batch.invalidated) == ([], True, True)
    assert ResumeToken.parse(batch.pbrt).from_invalidate


async def test_the_last_pbrt_covers_a_filtered_invalidate():
    host = HandmadeHost()
    host.drop("db", "a")
    cursor = host.watch({"$match": {"operationType": "drop"}}, on=("db", "a"))
    [drop] = (await cursor.next_batch(1, 0)).events
    end = await cursor.next_batch(1, 0)
    assert (end.events, end.closed, end.invalidated) == ([], True, True)
    assert ResumeToken.parse(end.pbrt).from_invalidate
    assert end.pbrt["_data"] > drop["_id"]["_data"]


async def test_start_after_an_invalidate_skips_only_that_one():
    host = HandmadeHost()
    host.drop("db", "a")
    first = await host.watch(on=("db", "a")).next_batch(None, 0)
    host.insert("db.a", {"_id": 1})
    host.drop("db", "a")
    again = await host.watch(on=("db", "a"), startAfter=first.pbrt).next_batch(None, 0)
    assert [e["operationType"] for e in again.events] == ["insert", "drop", "invalidate"]
    assert again.invalidated


async def test_lost_history_is_an_error():
    host = HandmadeHost(max_entries=8)
    early = host.watch()
    assert (await early.next_batch(None, 0)).events == []
    for key in range(20):
        host.insert("db.a", {"_id": key})
    with pytest.raises(CommandError) as lost:
        await host.watch().next_batch(None, 0)
    assert (lost.value.code, lost.value.labels) == (286, {"NonResumableChangeStreamError"})
    assert lost.value.message == (
        "PlanExecutor error during aggregation :: caused by :: Resume of change stream was not "
        "possible, as the resume point may no longer be in the oplog."
    )
    with pytest.raises(CommandError) as overtaken:
        await early.next_batch(None, 0)
    assert overtaken.value.code == 136
    kept = await host.watch(since=host.oplog.first_ts).next_batch(None, 0)
    assert ids(kept)[-1] == 19


async def test_updates_have_the_requested_images():
    host = HandmadeHost()
    ts = host.update("db.a", 1, {"u": {"n": 2}})
    host.stored[ts, 0] = Images({"_id": 1, "n": 1}, {"_id": 1, "n": 2})
    host.documents[1] = {"_id": 1, "n": 3}
    host.update("db.a", 4, {"u": {"n": 2}})

    async def documents(**options):
        batch = await host.watch(**options).next_batch(None, 0)
        return [
            (e.get("fullDocumentBeforeChange", "-"), e.get("fullDocument", "-"))
            for e in (bson.decode(event.raw) for event in batch.events)
        ]

    before, after, now = {"_id": 1, "n": 1}, {"_id": 1, "n": 2}, {"_id": 1, "n": 3}
    assert await documents() == [("-", "-"), ("-", "-")]
    assert await documents(fullDocument="updateLookup") == [("-", now), ("-", None)]
    assert await documents(fullDocument="whenAvailable") == [("-", after), ("-", None)]
    assert await documents(fullDocumentBeforeChange="whenAvailable") == [(before, "-"), (None, "-")]
    with pytest.raises(CommandError) as missing:
        await documents(fullDocument="required")
    assert (missing.value.code, missing.value.code_name) == (47, "NoMatchingDocument")
    assert 'event: {operationType: "update", ns: {db: "db", coll: "a"}' in missing.value.message


async def test_images_in_a_transaction_are_found_by_position():
    host = HandmadeHost()
    change = {"$v": 2, "diff": {"u": {"n": 2}}}
    update = {"op": "u", "ns": "db.a", "ui": UUID_A, "o": change, "o2": {"_id": 1}}
    ts = host.transaction([inserted("db.a", 0), update])
    host.stored[ts, 1] = Images({"_id": 1, "n": 1}, {"_id": 1, "n": 2})
    batch = await host.watch(fullDocumentBeforeChange="required").next_batch(None, 0)
    assert dict(batch.events[1]["fullDocumentBeforeChange"]) == {"_id": 1, "n": 1}


async def test_a_filtered_event_needs_no_image():
    host = HandmadeHost()
    host.update("db.a", 1, {"u": {"n": 2}})
    host.insert("db.a", {"_id": 2})
    unwanted = {"$match": {"documentKey._id": {"$ne": 1}}}
    cursor = host.watch(unwanted, fullDocumentBeforeChange="required")
    assert ids(await cursor.next_batch(None, 0)) == [2]


async def test_a_batch_holds_16_mebibytes():
    host = HandmadeHost()
    for key in range(5):
        host.insert("db.a", {"_id": key, "p": "x" * (6 << 20)})
    cursor = host.watch()
    batches = [await cursor.next_batch(None, 0) for _ in range(3)]
    assert [ids(batch) for batch in batches] == [[0, 1], [2, 3], [4]]
    for batch in batches[:2]:
        assert batch.pbrt == dict(batch.events[-1]["_id"])


async def test_a_changed_id_is_fatal():
    host = HandmadeHost()
    host.insert("db.a", {"_id": 1})
    cursor = host.watch({"$set": {"_id": 5}})
    await cursor.next_batch(0, 0)
    with pytest.raises(CommandError) as error:
        await cursor.next_batch(None, 0)
    assert error.value.code == 280
    assert error.value.message.startswith("Executor error during getMore :: caused by :: Encount")
    assert error.value.message.endswith("but found: { _id: 5 }")


histories = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from(["db.a", "db.b", "other.a"])),
        st.tuples(st.just("noop"), st.none()),
        st.tuples(st.just("transaction"), st.lists(st.sampled_from(["db.a", "x.y"]), max_size=4)),
        st.tuples(st.just("drop"), st.sampled_from(["a", "b"])),
    ),
    max_size=12,
)


def written(history, version):
    host = HandmadeHost(version)
    for place, (kind, what) in enumerate(history):
        if kind == "insert":
            host.insert(what, {"_id": place})
        elif kind == "noop":
            host.noop()
        elif kind == "transaction":
            host.transaction([inserted(ns, f"{place}.{n}") for n, ns in enumerate(what)])
        else:
            host.drop("db", what)
    return host


@settings(deadline=None, max_examples=60)
@given(histories, st.sampled_from([1, 2]), st.integers(1, 4), st.data())
async def test_a_stream_can_be_cut_at_any_watermark(history, version, size, data):
    """A stream resumed from any batch's promise returns the events after that batch."""
    host = written(history, version)
    whole = await host.watch().next_batch(None, 0)
    everything = [event.raw for event in whole.events]
    cursor = host.watch()
    found, promise = [], None
    for _ in range(data.draw(st.integers(0, 6))):
        batch = await cursor.next_batch(size, 0)
        found += [event.raw for event in batch.events]
        assert promise is None or promise["_data"] <= batch.pbrt["_data"]
        promise = batch.pbrt
    start = {} if promise is None else {"resumeAfter": promise}
    rest = await host.watch(**start).next_batch(None, 0)
    assert found + [event.raw for event in rest.events] == everything


async def test_a_high_water_mark_sorts_before_the_events_of_its_time():
    host = HandmadeHost()
    ts = host.insert("db.a", {"_id": 1})
    mark = ResumeToken.high_water_mark(ts, 1).document
    assert ids(await host.watch(resumeAfter=mark).next_batch(None, 0)) == [1]
    assert mark["_data"] == f"82{ts.time:08X}{ts.inc:08X}2B0229296E04"
    newer = ResumeToken.high_water_mark(Timestamp(1, 2), 2).document
    assert newer["_data"] == "8200000001000000022B0429296E1404"
