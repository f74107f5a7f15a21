"""The serverStatus of all workers together: counts are added where that makes sense."""

from datetime import UTC, datetime, timedelta
from typing import Any

from bson.int64 import Int64
from bson.timestamp import Timestamp

from router.counters.loads import Histogram
from router.counters.status_sums import sum_statuses

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def status(connections: int, streams: list[str], noops: dict[str, int]) -> dict[str, Any]:
    return {
        "host": "here:27020",
        "pid": Int64(7),
        "uptime": 12.0,
        "uptimeMillis": Int64(12000 + connections),
        "localTime": NOW,
        "asserts": {"user": connections, "rollovers": 0},
        "connections": {"current": connections, "available": 100 - connections},
        "network": {"bytesIn": Int64(10 * connections)},
        "mem": {"bits": 64, "resident": 50, "supported": True},
        "mergerouter": {
            "streams": [{"namespace": name, "events": Int64(3)} for name in streams],
            "refused": noops,
            "behindMillis": Int64(connections),
        },
    }


def test_counts_are_added_and_lists_joined() -> None:
    summed = sum_statuses(
        [status(3, ["a"], {"s0": 1}), status(4, ["b", "c"], {"s1": 2}), status(0, [], {"s0": 5})]
    )
    assert summed["connections"] == {"current": 7, "available": 93}
    assert summed["network"] == {"bytesIn": 70}
    assert isinstance(summed["network"]["bytesIn"], Int64)
    assert summed["asserts"] == {"user": 7, "rollovers": 0}
    ours = summed["mergerouter"]
    assert [stream["namespace"] for stream in ours["streams"]] == ["a", "b", "c"]
    assert [stream["events"] for stream in ours["streams"]] == [3, 3, 3]
    assert ours["refused"] == {"s0": 6, "s1": 2}


def test_router_wide_fields_are_kept() -> None:
    summed = sum_statuses([status(3, [], {}), status(9, [], {})])
    assert (summed["host"], summed["pid"], summed["uptime"]) == ("here:27020", 7, 12.0)
    assert (summed["uptimeMillis"], summed["localTime"]) == (12003, NOW)
    assert summed["mem"] == {"bits": 64, "resident": 100, "supported": True}
    assert summed["mergerouter"]["behindMillis"] == 9, "the largest of a delay"


def test_of_times_the_least_or_the_newest_is_kept() -> None:
    early, late = Timestamp(1, 1), Timestamp(2, 1)
    times = [
        {"now": NOW, "started": NOW, "targets": {"s0": {"watermark": mark}}}
        for mark in (None, late, early)
    ]
    earlier = NOW - timedelta(1)
    received = earlier.replace(tzinfo=None)  # as another worker's reply is decoded
    times[1] |= {"now": NOW + timedelta(1), "started": received}
    summed = sum_statuses(times)
    assert summed["targets"] == {"s0": {"watermark": early}}
    assert (summed["now"], summed["started"]) == (NOW + timedelta(1), earlier)


def test_a_single_status_is_returned_unchanged() -> None:
    own = status(3, ["a"], {"s0": 1})
    assert sum_statuses([own]) == status(3, ["a"], {"s0": 1})
    sum_statuses([own, status(1, [], {})])
    assert own == status(3, ["a"], {"s0": 1})
    partial = {"host": "h", "network": {"bytesIn": Int64(1)}}
    assert sum_statuses([partial, partial])["network"]["bytesIn"] == 2


def test_measurements_are_counted_by_their_bucket() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 3.0):
        histogram.record(seconds)
    document = histogram.to_document()
    assert {bound: count for bound, count in document["counts"].items() if count} == {
        "0.0001": 1,
        "0.001": 1,
        "0.0025": 1,
        "5.0": 1,
    }
    assert document["total"] == 3.0021
