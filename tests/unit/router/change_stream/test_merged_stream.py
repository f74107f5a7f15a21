from random import Random
from unittest.mock import patch

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from router.change_stream.actions import CloseRemote, OpenRemote, ReopenRemote
from router.change_stream.request import parse_request
from router.change_stream.resume_token import cluster_time_of, token_of
from router.merge.merger import weight
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_data
from tests.doubles.scripted_streams import Driver, PrivateStream, Script, batch, error_of, hwm
from tests.unit.router.tokens import data_of, event, shard_event, token_document

START = Timestamp(10, 1)
CONFIG, A, B = 0, 1, 2
END = hwm(1000)


def make(
    *,
    shards: int = 2,
    options: dict | None = None,
    target: str | int = 1,
    version: int = 1,
    start_at: Timestamp | None = None,
    topology_from: Timestamp = START,
    **more,
) -> PrivateStream:
    command = {"aggregate": target, "pipeline": [{"$changeStream": options or {}}], "cursor": {}}
    request = parse_request("db", {**command, **more})
    return PrivateStream(
        request,
        {f"shard{n}": f"shard{n}/h{n}:1,g{n}:2" for n in range(shards)},
        start_at=start_at or request.start_time or START,
        topology_from=topology_from,
        token_version=version,
    )


def opened(**options) -> PrivateStream:
    """Return a stream whose remotes have all answered their openings."""
    stream = make(**options)
    for action in stream.start():
        assert stream.batch_arrived(action.remote, batch([], hwm(10, 1))) == []
    return stream


def at(time: int, number: int = 1, **more) -> tuple[bytes, bytes]:
    return event(data_of(time, number, **more))


def arrive(stream: PrivateStream, remote: int, *times: int, upto: int | None = None) -> list:
    """Deliver events at ``times`` with a promise up to ``upto``, by default the last event."""
    events = [at(time, remote) for time in times]
    pbrt = hwm(upto) if upto is not None else token_of(events[-1][1])
    return stream.batch_arrived(remote, batch(events, pbrt))


def times(raw: list[bytes]) -> list[int]:
    return [cluster_time_of(token_data(token_of(one))).time for one in raw]


# Opening.


def test_opening_asks_the_config_server_and_every_shard():
    stream = make(topology_from=Timestamp(9, 9))
    assert stream.start() == [
        OpenRemote(CONFIG, "config", "", Timestamp(9, 9), topology=True),
        OpenRemote(A, "shard0", "shard0/h0:1,g0:2", START),
        OpenRemote(B, "shard1", "shard1/h1:1,g1:2", START),
    ]
    assert stream.remotes == {CONFIG: "config", A: "shard0", B: "shard1"}
    assert stream.gate_holder == CONFIG
    assert stream.promise(A) is None
    assert not stream.ready


def test_the_first_batch_is_empty_with_the_start_as_its_token():
    stream = opened()
    taken = stream.take(0)
    assert (taken.events, taken.pbrt, taken.closed) == ([], hwm(10, 1), False)


def test_a_start_in_the_future_is_the_mark_until_it_is_reached():
    stream = make(start_at=Timestamp(50, 1))
    for remote in (A, B):
        stream.batch_arrived(remote, batch([], hwm(50, 1)))
    for upto in (20, 30):
        stream.batch_arrived(CONFIG, batch([], hwm(upto)))
        assert stream.take(None).pbrt == hwm(50, 1)
    for upto in (51, 52):
        stream.batch_arrived(CONFIG, batch([], hwm(upto)))
    arrive(stream, A, upto=60)
    arrive(stream, B, upto=60)
    assert stream.take(None).pbrt == hwm(52)


def test_one_shard_only_without_the_config_server():
    stream = make(**{"$_passthroughToShard": {"shard": "shard1"}})
    assert [action.target for action in stream.start()] == ["shard1"]
    stream.batch_arrived(0, batch([at(11)], END))
    assert times(stream.take(None).events) == [11]


def test_an_unknown_shard_is_an_error():
    with pytest.raises(CommandError, match="Shard nope not found") as caught:
        make(**{"$_passthroughToShard": {"shard": "nope"}})
    assert caught.value.code == 70


# The gate.


def test_events_wait_for_every_promise_and_the_holder_is_named():
    stream = opened()
    arrive(stream, A, 12, 14, upto=20)
    arrive(stream, CONFIG, upto=20)
    assert not stream.ready
    assert stream.gate_holder == B
    waiting = stream.waiting_for
    assert waiting is not None
    assert (waiting.remote, waiting.target) == (B, "shard1")
    assert waiting.sort_key == at(12, A)[0]
    assert (waiting.cluster_time, waiting.latest) == (Timestamp(12, 1), Timestamp(14, 1))
    arrive(stream, B, upto=13)
    assert stream.ready
    assert stream.waiting_for is None
    taken = stream.take(None)
    assert times(taken.events) == [12]
    assert taken.pbrt == hwm(13)
    assert stream.waiting_for is not None


def test_all_lagging_remotes_are_named():
    stream = opened(shards=3)
    arrive(stream, A, 12, upto=20)
    assert [waiting.remote for waiting in stream.lagging] == [CONFIG, B, 3]
    arrive(stream, B, upto=20)
    assert [waiting.target for waiting in stream.lagging] == ["config", "shard2"]


def test_an_empty_buffer_waits_for_no_remote():
    stream = opened()
    assert stream.waiting_for is None
    assert stream.lagging == []


def test_bytes_count_as_buffered_until_they_are_taken():
    stream = opened()
    arrive(stream, A, 12, 14, 16, upto=20)
    size = weight(1, len(at(12, A)[1]))
    assert stream.buffered_bytes(A) == 3 * size
    arrive(stream, B, upto=15)
    arrive(stream, CONFIG, upto=99)
    assert stream.ready
    assert stream.buffered_bytes(A) == 3 * size
    stream.take(1)
    assert stream.buffered_bytes(A) == 3 * size
    stream.take(1)
    assert stream.buffered_bytes(A) == size
    assert stream.buffered_bytes(99) == 0


def test_a_full_batch_ends_with_its_last_event_s_token():
    stream = opened()
    for remote in (CONFIG, A, B):
        arrive(stream, remote, *(() if remote == CONFIG else (12, 14)), upto=30)
    taken = stream.take(3)
    assert times(taken.events) == [12, 12, 14]
    assert taken.pbrt == token_of(taken.events[-1])
    taken = stream.take(3)
    assert (times(taken.events), taken.pbrt) == ([14], hwm(30))


def test_a_batch_is_cut_at_16_mib():
    stream = opened()
    big = [event(data_of(20 + n, 1), pad=b"x" * (6 << 20)) for n in range(4)]
    for remote, events in ((CONFIG, []), (A, big[::2]), (B, big[1::2])):
        stream.batch_arrived(remote, batch(events, hwm(30)))
    taken = stream.take(None)
    assert len(taken.events) == 2
    assert taken.pbrt == token_of(taken.events[-1])
    assert stream.take(None).events == [big[2][1], big[3][1]]


def test_a_batch_with_enough_bytes_ends_with_its_block():
    stream = opened()
    for remote, numbers in ((CONFIG, ()), (A, range(12, 18)), (B, ())):
        arrive(stream, remote, *numbers, upto=30)
    with (
        patch("router.merge.merger.BLOCK_EVENTS", 1),
        patch("router.merge.merged_log.JOIN_BYTES", 0),
    ):
        first, second = stream.take(None, enough=1), stream.take(None, enough=1)
    assert (times(first.events), times(second.events)) == ([12, 13], [14, 15])
    assert second.pbrt == token_of(second.events[-1])


def test_an_event_larger_than_a_batch_is_returned_alone():
    stream = opened()
    arrive(stream, CONFIG, upto=30)
    arrive(stream, B, upto=30)
    arrive(stream, A, 12, 13, upto=30)
    assert len(stream.take(None, 10).events) == 1
    assert len(stream.take(None, 10).events) == 1


# Resuming.


def resumed_after(data: str, *, how: str = "resumeAfter", **options) -> PrivateStream:
    return opened(options={how: {"_data": data}}, **options)


def feed(stream: PrivateStream, *events: tuple[bytes, bytes], upto: int = 50) -> None:
    stream.batch_arrived(A, batch(list(events), hwm(upto)))
    for remote in (B, CONFIG):
        stream.batch_arrived(remote, batch([], hwm(upto)))


def test_events_up_to_the_token_are_dropped_and_not_ready():
    stream = resumed_after(data_of(10, 5))
    feed(stream, at(10, 3), at(10, 5))
    assert not stream.ready
    arrive(stream, A, 51, upto=60)
    arrive(stream, B, upto=60)
    arrive(stream, CONFIG, upto=60)
    assert stream.ready
    assert times(stream.take(None).events) == [51]


def test_the_token_is_the_mark_while_promises_lie_below_it():
    data = data_of(10, 5)
    stream = resumed_after(data)
    assert stream.take(0).pbrt == token_document(data)


def test_a_stream_without_the_token_fails_at_its_next_event():
    stream = resumed_after(data_of(10, 5))
    feed(stream, at(10, 3), upto=20)
    assert stream.take(None).events == []
    feed(stream, at(21, 7), at(22, 8), upto=30)
    assert stream.ready
    for _ in range(2):
        with pytest.raises(CommandError) as caught:
            stream.take(None)
    assert caught.value.code == 280
    assert caught.value.message.endswith(f'not found. {{_data: "{data_of(21, 7)}"}}')
    assert caught.value.labels == {"NonResumableChangeStreamError"}


@pytest.mark.parametrize(("token", "shards"), [(1, 2), (2, 1)])
def test_tokens_of_another_version_are_found(token, shards):
    stream = make(options={"resumeAfter": {"_data": data_of(10, 5, version=token)}}, version=shards)
    for action in stream.start():
        stream.batch_arrived(action.remote, batch([], hwm(10, 1, shards)))
    assert stream.take(0).pbrt == token_document(data_of(10, 5, version=token))
    events = [at(10, number, version=shards) for number in (3, 5, 7)]
    events.append(at(11, 1, version=shards))
    stream.batch_arrived(A, batch(events, hwm(50, 0, shards)))
    for remote in (B, CONFIG):
        stream.batch_arrived(remote, batch([], hwm(50, 0, shards)))
    assert stream.take(None).events == [raw for _, raw in events[2:]]


def test_a_missing_token_of_another_version_is_fatal():
    stream = resumed_after(data_of(10, 5, version=2))
    feed(stream, at(10, 3), at(10, 7))
    with pytest.raises(CommandError, match="not found"):
        stream.take(None)


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, list], list[tuple[bytes, bytes]]]:
    """Draw events by shard and in order; cluster times repeat, tokens do not."""
    shards = draw(st.integers(1, 4))
    slots = draw(
        st.lists(
            st.tuples(st.integers(11, 30), st.integers(1, 63), st.integers(0, shards - 1)),
            max_size=40,
            unique_by=lambda slot: slot[:2],
        )
    )
    version = draw(st.sampled_from([1, 2]))
    owned = sorted((*at(time, number, version=version), owner) for time, number, owner in slots)
    by_shard = {
        f"shard{n}": [(key, raw) for key, raw, owner in owned if owner == n] for n in range(shards)
    }
    return by_shard, [(key, raw) for key, raw, _ in owned]


@settings(max_examples=60)
@given(histories(), st.randoms(use_true_random=False))
def test_any_history_can_be_cut_and_resumed(history, rnd: Random):
    by_shard, everything = history
    version = 2 if any(b"2B042C0100" in key for key, _ in everything) else 1
    end = hwm(1000, 0, version)
    scripts = {shard: Script(events, end, version=version) for shard, events in by_shard.items()}
    scripts["config"] = Script([], END)
    first = Driver(make(shards=len(by_shard), version=version), scripts, rnd, max_events=9).run()
    assert first.events == [raw for _, raw in everything]
    assert first.taken[-1].closed is False

    cut = rnd.randrange(len(first.taken))
    before = [raw for taken in first.taken[: cut + 1] for raw in taken.events]
    points = [first.taken[cut].pbrt]
    if before:
        points.append(token_of(before[-1]))
    for point in points:
        options = {"resumeAfter": bson.decode(point)}
        stream = make(shards=len(by_shard), options=options, version=version)
        second = Driver(stream, scripts, rnd, max_events=9).run()
        assert before + second.events == first.events


# Invalidates.


def invalidated(
    stream: PrivateStream, remote: int, time: int, *, shown: bool = True
) -> tuple[list, bytes]:
    """Deliver a dropped collection's last batch: a drop, an invalidate, and cursor id 0."""
    drop, end = at(time, 0), at(time, 0, invalidate=True)
    events = [drop, end] if shown else [drop]
    token = token_of(end[1])
    return stream.batch_arrived(remote, batch(events, token, invalidated=True)), token


def test_an_invalidate_closes_the_stream_after_all_ready_events():
    stream = opened(target="c")
    arrive(stream, CONFIG, upto=99)
    actions, token = invalidated(stream, A, 20)
    assert actions == []
    assert not stream.ready
    arrive(stream, B, 15, 20, 25, upto=30)
    taken = stream.take(None)
    assert times(taken.events) == [15, 20, 20, 20]
    assert (taken.pbrt, taken.closed) == (token, False)
    assert stream.ready
    assert stream.waiting_for is None
    taken = stream.take(None)
    assert (taken.events, taken.pbrt, taken.closed) == ([], token, True)


def test_equal_invalidates_of_several_shards_are_all_delivered():
    stream = opened(target="c")
    arrive(stream, CONFIG, upto=99)
    invalidated(stream, A, 20)
    assert not stream.ready
    _, token = invalidated(stream, B, 20)
    taken = stream.take(3)
    assert len(taken.events) == 3
    assert not taken.closed
    assert len(stream.take(None).events) == 1
    assert stream.take(None) == type(taken)([], 0, token, closed=True)


def test_a_filtered_invalidate_still_closes_the_stream():
    stream = opened(target="c")
    arrive(stream, CONFIG, upto=99)
    arrive(stream, B, upto=99)
    _, token = invalidated(stream, A, 20, shown=False)
    assert times(stream.take(None).events) == [20]
    taken = stream.take(None)
    assert (taken.events, taken.pbrt, taken.closed) == ([], token, True)


@pytest.mark.parametrize("shown", [True, False])
def test_starting_after_an_invalidate_skips_each_shard_s_first(shown):
    data = data_of(10, 0, invalidate=True)
    stream = resumed_after(data, how="startAfter", target="c")
    arrive(stream, CONFIG, upto=99)
    actions, token = invalidated(stream, A, 10, shown=shown)
    assert actions == [ReopenRemote(A, token)]
    assert token == token_document(data)
    assert stream.batch_arrived(A, batch([], token)) == []
    arrive(stream, A, 12, upto=40)
    # The other shard dropped the collection later; its invalidate does not end the stream again.
    actions, later = invalidated(stream, B, 20, shown=shown)
    assert actions == [ReopenRemote(B, later)]
    taken = stream.take(None)
    stream.batch_arrived(B, batch([], later))
    # No token may point to an invalidate that was not delivered.
    assert taken.pbrt == stream.take(None).pbrt == token_of(taken.events[-1])
    arrive(stream, B, upto=40)
    assert stream.take(None).pbrt == hwm(40)
    assert (times(taken.events), taken.closed) == ([12, 20], False)
    assert bson.decode(taken.events[-1])["_id"]["_data"] == data_of(20, 0)
    # The shard's next invalidate ends it.
    invalidated(stream, A, 50)
    arrive(stream, B, upto=60)
    assert times(stream.take(None).events) == [50, 50]
    assert stream.take(None).closed


def test_starting_after_a_missing_invalidate_is_fatal():
    stream = resumed_after(data_of(10, 0, invalidate=True), how="startAfter", target="c")
    feed(stream, at(12))
    with pytest.raises(CommandError) as caught:
        stream.take(None)
    assert caught.value.code == 280


# Topology.


def added(shard: str, time: int, upto: int, host: str = "new/h:1") -> CursorBatch:
    return batch([shard_event(time, "insert", shard, host)], hwm(upto))


def test_a_new_shard_is_opened_one_tick_later_and_holds_the_gate():
    stream = opened()
    arrive(stream, A, 12, 15, 18, upto=50)
    arrive(stream, B, upto=50)
    actions = stream.batch_arrived(CONFIG, added("shard9", 15, 50))
    assert actions == [OpenRemote(3, "shard9", "new/h:1", Timestamp(15, 2))]
    assert stream.remotes[3] == "shard9"
    taken = stream.take(None)
    assert times(taken.events) == [12, 15]
    assert taken.pbrt == token_of(taken.events[-1])
    assert not stream.ready
    assert stream.gate_holder == 3
    stream.batch_arrived(3, batch([], hwm(15, 2)))
    assert not stream.ready
    stream.batch_arrived(3, batch([at(16, 3)], hwm(50)))
    assert times(stream.take(None).events) == [16, 18]


def test_a_new_shard_opens_no_earlier_than_the_stream_s_start():
    stream = make(start_at=Timestamp(90, 1))
    (opening,) = stream.batch_arrived(CONFIG, added("shard9", 15, 50))
    assert opening.start_at == Timestamp(90, 1)


def test_a_new_shard_s_tokens_of_another_version_are_accepted():
    stream = opened(version=2)
    stream.batch_arrived(CONFIG, added("shard9", 15, 50))
    assert stream.batch_arrived(3, batch([], hwm(15, 2, 1))) == []
    assert stream.promise(3) == token_data(hwm(15, 2, 1))


def test_a_known_shard_is_not_opened_again():
    stream = opened()
    for time, host in ((15, "shard0/h0:1,g0:2"), (55, "shard0/elsewhere:1")):
        changed = batch([shard_event(time, "replace", "shard0", host)], hwm(time + 1))
        assert stream.batch_arrived(CONFIG, changed) == []


def test_a_known_shard_inserted_at_a_new_host_is_reopened():
    stream = opened()
    elsewhere = "shard0/elsewhere:1"
    inserted = batch([shard_event(30, "insert", "shard0", elsewhere)], hwm(70))
    at = Timestamp(30, 2)
    assert stream.batch_arrived(CONFIG, inserted) == [OpenRemote(3, "shard0", elsewhere, at)]
    # The old remote delivers its earlier events and holds the gate until then.
    arrive(stream, B, upto=70)
    arrive(stream, 3, 40, upto=70)
    assert stream.take(None).events == []
    assert arrive(stream, A, 20, 35, upto=70) == [CloseRemote(A)]
    assert times(stream.take(None).events) == [20, 40]


def test_updates_of_config_shards_have_no_effect():
    stream = opened()
    changed = [shard_event(15, "update", "shard0"), shard_event(16, "drop", "x")]
    assert stream.batch_arrived(CONFIG, batch(changed, hwm(50))) == []


def draining(shard: str, time: int, upto: int, yes: bool = True) -> CursorBatch:
    changed = {"updatedFields": {"draining": True}} if yes else {"removedFields": ["draining"]}
    told = shard_event(time, "update", shard, updateDescription=changed)
    return batch([told], hwm(upto))


def test_a_draining_shard_missing_from_the_list_has_left():
    """6.0 reports that a shard drains, but not that it is removed."""
    stream = opened()
    assert stream.batch_arrived(CONFIG, draining("shard1", 20, 50)) == []
    assert stream.draining == {"shard1"}
    both = {"shard0", "shard1"}
    assert stream.shards_listed(both, {"shard1"}, Timestamp(30, 1)) == []
    assert stream.leaving == []
    assert stream.shards_listed({"shard0"}, set(), Timestamp(40, 1)) == []
    assert stream.draining == set()
    [leaving] = stream.leaving
    assert (leaving.target, leaving.cluster_time) == ("shard1", Timestamp(40, 2))
    arrive(stream, A, upto=50)
    assert arrive(stream, B, 15, 39, upto=41) == [CloseRemote(B)]
    assert times(stream.take(None).events) == [15, 39]


def test_a_shard_that_stopped_draining_is_kept():
    stream = opened()
    stream.batch_arrived(CONFIG, draining("shard1", 20, 30))
    stream.batch_arrived(CONFIG, draining("shard1", 35, 50, yes=False))
    assert stream.draining == set()
    assert stream.shards_listed({"shard0"}, set(), Timestamp(40, 1)) == []
    assert arrive(stream, B, upto=50) == []


def test_a_shard_added_again_after_the_list_was_read_is_kept():
    stream = opened()
    stream.batch_arrived(CONFIG, draining("shard1", 20, 30))
    returned = shard_event(35, "insert", "shard1", "shard1/h:1")
    stream.batch_arrived(CONFIG, batch([returned], hwm(36)))
    stream.batch_arrived(CONFIG, draining("shard1", 40, 60))
    assert stream.shards_listed({"shard0"}, set(), Timestamp(34, 1)) == []
    assert arrive(stream, B, upto=50) == [CloseRemote(B)]
    stream.batch_arrived(3, batch([], hwm(60)))
    assert stream.remotes == {CONFIG: "config", A: "shard0", 3: "shard1"}


def removed(shard: str, time: int, upto: int) -> CursorBatch:
    return batch([shard_event(time, "delete", shard)], hwm(upto))


def test_a_removed_shard_is_closed_when_it_promises_beyond_its_removal():
    stream = opened()
    assert stream.batch_arrived(CONFIG, removed("shard1", 20, 50)) == []
    assert arrive(stream, B, 15, upto=20) == []
    arrive(stream, A, upto=50)
    assert arrive(stream, B, upto=21) == [CloseRemote(B)]
    assert B not in stream.remotes
    assert arrive(stream, B, 40, upto=50) == []
    stream.remote_failed(B, CommandError(6, "gone"))
    # Its buffered events are still delivered, and it no longer holds the gate.
    arrive(stream, A, 60, upto=70)
    arrive(stream, CONFIG, upto=70)
    assert times(stream.take(None).events) == [15, 60]


def test_a_removed_shard_that_fails_before_its_last_promise_is_an_error():
    stream = opened()
    stream.batch_arrived(CONFIG, removed("shard1", 20, 50))
    arrive(stream, B, upto=20)
    stream.remote_failed(B, CommandError(6, "gone"))
    with pytest.raises(CommandError, match="gone"):
        stream.take(None)


def test_the_removal_of_an_unknown_shard_is_ignored():
    assert opened().batch_arrived(CONFIG, removed("shard7", 20, 50)) == []


@pytest.mark.parametrize("host", ["other/h:1", "shard1/h1:1,g1:2"])
def test_a_returning_shard_is_opened_beside_its_old_remote(host):
    stream = opened()
    events = [shard_event(20, "delete", "shard1"), shard_event(25, "insert", "shard1", host)]
    actions = stream.batch_arrived(CONFIG, batch(events, hwm(50)))
    assert actions == [OpenRemote(3, "shard1", host, Timestamp(25, 2))]
    assert arrive(stream, B, upto=60) == [CloseRemote(B)]
    assert stream.remotes == {CONFIG: "config", A: "shard0", 3: "shard1"}


def test_a_returning_shard_delivers_no_event_twice():
    """The config server lags: the router learns of the removal after the shard's return."""
    stream = opened()
    arrive(stream, A, upto=60)
    arrive(stream, B, 15, 22, 30, 40, upto=60)
    events = [
        shard_event(20, "delete", "shard1"),
        shard_event(25, "insert", "shard1", "shard1/h1:1"),
    ]
    opening, closing = stream.batch_arrived(CONFIG, batch(events, hwm(60)))
    assert (opening.start_at, closing) == (Timestamp(25, 2), CloseRemote(B))
    stream.batch_arrived(3, batch([], hwm(25, 2)))
    stream.batch_arrived(3, batch([at(30), at(40)], hwm(60)))
    assert times(stream.take(None).events) == [15, 30, 40]


def test_a_shard_can_leave_and_return_repeatedly():
    stream = opened()
    events = [
        shard_event(20, "delete", "shard1"),
        shard_event(25, "insert", "shard1", "shard1/h1:1"),
        shard_event(30, "delete", "shard1"),
        shard_event(35, "insert", "shard1", "shard1/h1:1"),
    ]
    actions = stream.batch_arrived(CONFIG, batch(events, hwm(50)))
    assert [action.start_at.time for action in actions] == [25, 35]
    assert arrive(stream, B, upto=50) == [CloseRemote(B)]
    stream.batch_arrived(3, batch([], hwm(25, 2)))
    assert stream.batch_arrived(3, batch([at(27), at(37)], hwm(50))) == [CloseRemote(3)]
    stream.batch_arrived(4, batch([], hwm(35, 2)))
    stream.batch_arrived(4, batch([at(37)], hwm(50)))
    arrive(stream, A, upto=50)
    assert times(stream.take(None).events) == [27, 37]


def test_a_removed_shard_is_nudged_until_it_is_closed():
    stream = opened()
    assert not stream.leaving
    stream.batch_arrived(CONFIG, removed("shard1", 20, 50))
    (waiting,) = stream.leaving
    assert (waiting.remote, waiting.target, waiting.latest) == (B, "shard1", Timestamp(20, 2))
    arrive(stream, B, upto=50)
    assert not stream.leaving


def test_a_forged_topology_event_is_harmless():
    stream = opened()
    forged = shard_event(15, "insert", "shard9", "evil/h:1")
    assert stream.batch_arrived(A, batch([forged], hwm(50))) == []
    arrive(stream, B, upto=50)
    arrive(stream, CONFIG, upto=50)
    assert stream.take(None).events == [forged[1]]


# Failures.


def test_an_error_follows_ready_events_and_has_mongos_s_label():
    stream = opened()
    arrive(stream, A, 12, upto=50)
    arrive(stream, B, upto=20)
    arrive(stream, CONFIG, upto=50)
    stream.remote_failed(B, CommandError(91, "going down"))
    assert stream.ready
    assert times(stream.take(None).events) == [12]
    with pytest.raises(CommandError) as caught:
        stream.take(None)
    assert caught.value.message == "Error on remote shard h1:1 :: caused by :: going down"
    assert caught.value.code_name == "ShutdownInProgress"
    assert caught.value.labels == {"ResumableChangeStreamError"}
    assert stream.take(0).events == []
    assert arrive(stream, B, upto=60) == []


def test_the_first_error_is_kept_and_names_its_source():
    stream = opened()
    stream.remote_failed(A, CommandError(1, "first"), "there:5")
    stream.remote_failed(B, CommandError(1, "second"))
    with pytest.raises(CommandError, match=r"Error on remote shard there:5 .* first"):
        stream.take(None)


def test_a_refused_opening_fails_with_the_shard_s_message():
    stream = make()
    stream.remote_failed(A, CommandError(2, "unknown top level operator: $nope."))
    with pytest.raises(CommandError) as caught:
        stream.take(0)
    assert caught.value.to_reply() == {
        "ok": 0.0,
        "errmsg": "unknown top level operator: $nope.",
        "code": 2,
        "codeName": "BadValue",
    }


@pytest.mark.parametrize(
    ("remote", "broken"),
    [
        (A, batch([], hwm(5))),
        (A, batch([], b"")),
        (A, CursorBatch(0, [], hwm(50), 0)),
        (CONFIG, batch([], token_of(at(20, 0, invalidate=True)[1]), invalidated=True)),
        (CONFIG, batch([event(data_of(20, 1), operationType="insert")], hwm(50))),
    ],
)
def test_a_remote_s_protocol_violation_ends_the_stream(remote, broken):
    stream = opened()
    assert stream.batch_arrived(remote, broken) == [CloseRemote(remote)]
    with pytest.raises(CommandError, match="broke its rules"):
        stream.take(None)


def test_only_errors_of_order_are_resumable():
    for broken, labels in ((batch([], hwm(5)), {RESUMABLE_LABEL}), (batch([], b""), set())):
        stream = opened()
        stream.batch_arrived(A, broken)
        assert stream.error is not None
        assert set(stream.error.labels) == labels


def test_replies_of_closed_remotes_are_ignored():
    stream = opened()
    stream.remote_failed(77, CommandError(1, "x"))
    assert stream.batch_arrived(77, batch([], END)) == []
    assert not stream.ready
    assert stream.promise(77) is None


def test_a_failing_script_fails_the_run():
    stream = make()
    scripts = {"config": Script([], END), "shard0": Script([at(12)], END)}
    scripts["shard1"] = Script([at(14)], hwm(13))
    assert "broke its rules" in error_of(Driver(stream, scripts, Random(3))).message


@settings(max_examples=60)
@given(histories(), st.data(), st.randoms(use_true_random=False))
def test_shards_that_join_during_a_history_lose_no_events(history, data, rnd: Random):
    """A shard has no events before its insertion into config.shards."""
    by_shard, everything = history
    version = 2 if any(b"2B042C0100" in key for key, _ in everything) else 1
    joining = data.draw(st.lists(st.sampled_from(sorted(by_shard)[1:] or [""]), unique=True))
    config, expected = [], set(everything)
    for shard in filter(None, joining):
        time = data.draw(st.integers(11, 30))
        config.append(shard_event(time, "insert", shard, "new/h:1"))
        before = {e for e in by_shard[shard] if cluster_time_of(e[0]) <= Timestamp(time, 1)}
        expected -= before
        by_shard[shard] = [e for e in by_shard[shard] if e not in before]
    config.sort()

    end = hwm(1000, 0, version)
    scripts = {shard: Script(events, end, version=version) for shard, events in by_shard.items()}
    scripts["config"] = Script(config, END)
    known = {shard: shard for shard in by_shard if shard not in joining}
    request = parse_request(
        "db", {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}
    )
    stream = PrivateStream(
        request, known, start_at=START, topology_from=START, token_version=version
    )
    driver = Driver(stream, scripts, rnd, max_events=9).run()
    assert driver.events == [raw for _, raw in sorted(expected)]
