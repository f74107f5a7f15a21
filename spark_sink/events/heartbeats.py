"""Heartbeats, rows with the position of the stream: Debezium's `heartbeat.interval.ms`.

An offset holds the cluster time of the latest heartbeat. A micro-batch has a heartbeat's row if its
two ends hold different times, so a repeated batch has the same row.
"""

from __future__ import annotations

import bson
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.events.positions import Position, time_of

HEARTBEAT = "heartbeat"
"""The operation type of these rows."""


def heartbeat(time: Timestamp) -> bytes:
    """Return the event of a heartbeat, which follows the rows of all events before `time`.

    Its token sorts above those of all earlier events.
    """
    token = {"_data": high_water_mark(time)}
    return bson.encode({"_id": token, "operationType": HEARTBEAT, "clusterTime": time})


def latest_heartbeat(last: Timestamp | None, end: Position, interval: float) -> Timestamp | None:
    """Return the time of the latest heartbeat at the end of a batch; None without heartbeats.

    `last` is the latest one at the batch's start, `interval` is in seconds of cluster time. If
    there was no heartbeat before, the interval begins at the batch's end.
    """
    reached = time_of(end)
    if not interval or reached is None:
        return None
    if last is None or reached.time - last.time >= interval:
        return reached
    return last


def heartbeats(last: Timestamp | None, now: Timestamp | None) -> list[bytes]:
    """Return the heartbeat of a batch, if any, from the latest heartbeats at its two ends."""
    return [] if last is None or now is None or last == now else [heartbeat(now)]
