import bson
from bson import Int64, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shard_client.cluster_clock import ClusterClock

ticks = st.builds(
    Timestamp, st.integers(min_value=1, max_value=2**32 - 1), st.integers(0, 2**32 - 1)
)


def gossip(time: Timestamp) -> dict[str, object]:
    return {"clusterTime": time, "signature": {"hash": b"h" * 20, "keyId": Int64(7)}}


@given(st.lists(st.tuples(ticks, st.booleans()), min_size=1))
def test_the_latest_time_is_kept_with_its_signature(seen: list[tuple[Timestamp, bool]]):
    clock = ClusterClock()
    for time, raw in seen:
        clock.advance(bson.encode(gossip(time)) if raw else gossip(time))
    newest = max(time for time, _ in seen)
    assert clock.time == newest
    assert clock.document == gossip(newest)


def test_a_damaged_document_is_ignored():
    clock = ClusterClock()
    good = bson.encode(gossip(Timestamp(5, 6)))
    clock.advance(good)
    newer = bytearray(bson.encode(gossip(Timestamp(7, 1))))
    newer[newer.index(b"hash")] = 0xFF
    clock.advance(bytes(newer))
    clock.advance(memoryview(newer)[:9])
    assert (clock.time, clock.raw) == (Timestamp(5, 6), good)


def test_a_time_far_ahead_of_the_wall_clock_is_ignored():
    clock = ClusterClock(lambda: 1_000_000.0)
    clock.advance(gossip(Timestamp(1_000_010, 1)))
    clock.advance(gossip(Timestamp(1_000_000 + 366 * 86_400, 1)))
    assert clock.time == Timestamp(1_000_010, 1)
