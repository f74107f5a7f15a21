import bson
from bson import Int64, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shard_client.cluster_clock import ClusterClock

ticks = st.builds(
    Timestamp, st.integers(min_value=1, max_value=2**32 - 1), st.integers(0, 2**32 - 1)
)


def gossip(time: Timestamp, key_id: int = 7) -> dict[str, object]:
    """Return a time that a server sends; key 0 signs nothing."""
    return {"clusterTime": time, "signature": {"hash": b"h" * 20, "keyId": Int64(key_id)}}


@given(st.lists(st.tuples(ticks, st.booleans(), st.sampled_from([0, 7])), min_size=1))
def test_the_latest_and_the_latest_signed_time_are_kept(
    seen: list[tuple[Timestamp, bool, int]],
):
    clock, newest = ClusterClock(), Timestamp(0, 0)
    signed: tuple[object, object] = (None, None)
    for time, raw, key_id in seen:
        sent = gossip(time, key_id)
        clock.advance(bson.encode(sent) if raw else sent)
        if time > newest:
            newest, document = time, sent
            signed = (bson.encode(sent), time) if key_id else signed
    assert clock.time == newest
    assert clock.ordinal == newest.time << 32 | newest.inc
    assert clock.document == document
    assert clock.newest_signed == signed


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
