"""A merged stream while shards join, drain and leave."""

from random import Random

import pytest
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from router.request.stream_request import parse_request
from router.stream.remote_queue import CloseRemote, OpenRemote
from shard_client.bson.resume_token import cluster_time_of
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_data, token_of
from tests.doubles.scripted_streams import Driver, PrivateStream, Script, batch, hwm
from tests.unit.router.made_tokens import shard_event
from tests.unit.router.stream.streams_by_hand import (
    CONFIG,
    END,
    START,
    A,
    B,
    arrive,
    at,
    histories,
    make,
    opened,
    times,
)


def added(shard: str, time: int, upto: int, host: str = "new/h:1") -> CursorBatch:
    return batch([shard_event(time, "insert", shard, host)], hwm(upto))


def test_a_new_shard_is_opened_one_tick_later_and_holds_the_low_watermark():
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
    assert stream.slowest_remote == 3
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
    assert stream.watermark(3) == token_data(hwm(15, 2, 1))


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
    # The old remote delivers its earlier events and holds the low watermark until then.
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
    assert stream.leaving == [(B, Timestamp(40, 2))]
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


def test_a_removed_shard_is_closed_when_its_watermark_passes_its_removal():
    stream = opened()
    assert stream.batch_arrived(CONFIG, removed("shard1", 20, 50)) == []
    assert arrive(stream, B, 15, upto=20) == []
    arrive(stream, A, upto=50)
    assert arrive(stream, B, upto=21) == [CloseRemote(B)]
    assert B not in stream.remotes
    assert arrive(stream, B, 40, upto=50) == []
    stream.remote_failed(B, CommandError(6, "gone"))
    # Its buffered events are still delivered, and it no longer holds the low watermark back.
    arrive(stream, A, 60, upto=70)
    arrive(stream, CONFIG, upto=70)
    assert times(stream.take(None).events) == [15, 60]


def test_a_removed_shard_that_fails_before_its_last_watermark_is_an_error():
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


def test_a_removed_shard_gets_noops_until_it_is_closed():
    stream = opened()
    assert not stream.leaving
    stream.batch_arrived(CONFIG, removed("shard1", 20, 50))
    assert stream.leaving == [(B, Timestamp(20, 2))]
    arrive(stream, B, upto=50)
    assert not stream.leaving


def test_a_forged_topology_event_is_harmless():
    stream = opened()
    forged = shard_event(15, "insert", "shard9", "evil/h:1")
    assert stream.batch_arrived(A, batch([forged], hwm(50))) == []
    arrive(stream, B, upto=50)
    arrive(stream, CONFIG, upto=50)
    assert stream.take(None).events == [forged[1]]


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
