"""Heartbeats: their times and their tokens."""

import bson
from bson.timestamp import Timestamp

from spark_sink.events.heartbeats import heartbeat, heartbeats, latest_heartbeat
from spark_sink.events.positions import AtTime, FromNow, key_of


def test_each_interval_has_one_heartbeat() -> None:
    last = None
    found = []
    for second in (100, 103, 109, 110, 111, 125, 134):
        latest = latest_heartbeat(last, AtTime(Timestamp(second, 7)), 10.0)
        found += [bson.decode(each)["clusterTime"].time for each in heartbeats(last, latest)]
        last = latest
    assert found == [110, 125]
    assert latest_heartbeat(last, AtTime(Timestamp(999, 1)), 0.0) is None
    assert latest_heartbeat(None, FromNow(), 10.0) is None
    assert heartbeats(Timestamp(5, 5), None) == []


def test_the_token_of_a_heartbeat_sorts_by_its_time() -> None:
    event = bson.decode(heartbeat(Timestamp(100, 7)))
    token = event["_id"]["_data"]
    assert key_of(AtTime(Timestamp(100, 6))) + "FF" < token
    assert token < key_of(AtTime(Timestamp(100, 7))) + "2B022C"
    assert (event["operationType"], event["clusterTime"]) == ("heartbeat", Timestamp(100, 7))
