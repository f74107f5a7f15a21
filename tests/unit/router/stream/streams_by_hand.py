"""Merged streams whose remotes the test answers by hand."""

from collections.abc import Iterable

from bson.timestamp import Timestamp

from router.request.stream_request import parse_request
from router.stream.merge.shard_membership import ShardSpan
from shard_client.bson.resume_token import cluster_time_of
from shard_client.remote_cursor.cursor_reply import token_key, token_of
from tests.doubles.scripted_streams import PrivateStream, batch, hwm
from tests.unit.router.made_tokens import data_of, event

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
    topology_from: Timestamp | None = START,
    spans: Iterable[ShardSpan] = (),
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
        spans=spans,
    )


def opened(**options) -> PrivateStream:
    """Return a stream whose remotes have all answered their openings."""
    stream = make(**options)
    for remote in list(stream.merger.remotes):
        stream.batch_arrived(remote, batch([], hwm(10, 1)))
    return stream


def at(time: int, number: int = 1, **more) -> tuple[bytes, bytes]:
    return event(data_of(time, number, **more))


def arrive(stream: PrivateStream, remote: int, *times: int, upto: int | None = None) -> None:
    """Deliver events at ``times`` with a watermark up to ``upto``, by default the last event."""
    events = [at(time, remote) for time in times]
    pbrt = hwm(upto) if upto is not None else token_of(events[-1][1])
    stream.batch_arrived(remote, batch(events, pbrt))


def times(raw: list[bytes]) -> list[int]:
    return [cluster_time_of(token_key(token_of(one))).time for one in raw]


def feed(stream: PrivateStream, *events: tuple[bytes, bytes], upto: int = 50) -> None:
    stream.batch_arrived(A, batch(list(events), hwm(upto)))
    for remote in (B, CONFIG):
        stream.batch_arrived(remote, batch([], hwm(upto)))
