import hashlib
import hmac
import struct

import bson
from bson.timestamp import Timestamp

from router.access.signing import SigningKey
from shard_client.cluster_clock import ClusterClock


def cluster_time(seconds: int, key_id: int) -> dict[str, object]:
    signature = {"hash": b"\1" * 20, "keyId": bson.Int64(key_id)}
    return {"clusterTime": Timestamp(seconds, 1), "signature": signature}


def test_signatures_cover_a_range_of_times() -> None:
    key = SigningKey(7, b"k" * 20, 0)
    first, last = 5 << 32, (5 << 32) | 0xFFFF
    whole = hmac.new(b"k" * 20, struct.pack("<Q", last), hashlib.sha1).digest()
    assert key.sign(first) == key.sign(last) == whole
    assert key.sign(last + 1) != whole


def test_the_clock_keeps_the_newest_signed_time() -> None:
    clock = ClusterClock()
    assert clock.newest_signed is None
    clock.advance(cluster_time(5, 9))
    clock.advance(cluster_time(6, 0))
    assert clock.time == Timestamp(6, 1)
    assert clock.newest_signed == (bson.encode(cluster_time(5, 9)), Timestamp(5, 1))
    assert clock.ordinal == 6 << 32 | 1
