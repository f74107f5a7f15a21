"""A merged stream: its opening, its low watermark, its batches and its failures."""

from random import Random

import pytest
from bson.timestamp import Timestamp

from router.memory import weight
from router.stream.remote_queue import CloseRemote, OpenRemote
from router.stream_settings import BlockSizes
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, Watermark, token_of
from tests.doubles.scripted_streams import Driver, Script, batch, error_of, hwm
from tests.unit.router.made_tokens import data_of, event
from tests.unit.router.stream.streams_by_hand import (
    CONFIG,
    END,
    START,
    A,
    B,
    arrive,
    at,
    make,
    opened,
    times,
)


def test_opening_asks_the_config_server_and_every_shard():
    stream = make(topology_from=Timestamp(9, 9))
    assert stream.start() == [
        OpenRemote(CONFIG, "config", "", Timestamp(9, 9), topology=True),
        OpenRemote(A, "shard0", "shard0/h0:1,g0:2", START),
        OpenRemote(B, "shard1", "shard1/h1:1,g1:2", START),
    ]
    assert stream.remotes == {CONFIG: "config", A: "shard0", B: "shard1"}
    assert stream.slowest_remote == CONFIG
    assert stream.watermark(A) is None
    assert not stream.ready


def test_the_first_batch_is_empty_with_the_start_as_its_token():
    stream = opened()
    taken = stream.take(0)
    assert (taken.events, taken.pbrt, taken.closed) == ([], hwm(10, 1), False)


def test_a_start_in_the_future_is_the_high_water_mark_until_it_is_reached():
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


def test_events_wait_for_every_watermark_and_the_slowest_shard_is_named():
    stream = opened()
    arrive(stream, A, 12, 14, upto=20)
    arrive(stream, CONFIG, upto=20)
    assert not stream.ready
    assert stream.slowest_remote == B
    waiting = stream.waiting_for
    assert waiting == (B, Timestamp(14, 1))
    assert stream.is_needed(B)
    assert not stream.is_needed(A)
    arrive(stream, B, upto=13)
    assert stream.ready
    assert stream.waiting_for is None
    taken = stream.take(None)
    assert times(taken.events) == [12]
    assert taken.pbrt == hwm(13)
    assert stream.waiting_for is not None


def test_events_are_held_back_until_one_is_ready():
    stream = opened()
    assert not stream.is_held_back
    arrive(stream, A, 12, 14, upto=20)
    arrive(stream, CONFIG, upto=20)
    assert stream.is_held_back
    arrive(stream, B, upto=13)
    stream.merge_ahead(1)
    assert not stream.is_held_back
    assert times(stream.take(None).events) == [12]
    assert times(stream.take(None).events) == []
    assert stream.is_held_back
    arrive(stream, B, upto=20)
    stream.merge_ahead(1)
    assert times(stream.take(None).events) == [14]
    assert not stream.is_held_back


def test_all_lagging_remotes_are_named():
    stream = opened(shards=3)
    arrive(stream, A, 12, upto=20)
    assert [waiting.remote for waiting in stream.lagging] == [CONFIG, B, 3]
    arrive(stream, B, upto=20)
    assert [waiting.remote for waiting in stream.lagging] == [CONFIG, 3]


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
    stream = opened(sizes=BlockSizes(1, join_bytes=0))
    for remote, numbers in ((CONFIG, ()), (A, range(12, 18)), (B, ())):
        arrive(stream, remote, *numbers, upto=30)
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
        (A, CursorBatch(0, [], Watermark.of(hwm(50)), 0)),
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
    assert stream.watermark(77) is None


def test_a_failing_script_fails_the_run():
    stream = make()
    scripts = {"config": Script([], END), "shard0": Script([at(12)], END)}
    scripts["shard1"] = Script([at(14)], hwm(13))
    assert "broke its rules" in error_of(Driver(stream, scripts, Random(3))).message
