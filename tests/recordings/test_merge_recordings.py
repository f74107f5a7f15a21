"""Recorded shard batches, cut and ordered at random, merge into exactly mongos's events."""

from collections import Counter
from random import Random

import bson
import pytest

from router.request.stream_request import parse_request
from shard_client.bson.resume_token import ResumeToken
from shard_client.remote_cursor.cursor_reply import token_of
from tests.doubles.scripted_streams import Driver, PrivateStream, Script, keyed
from tests.recordings.recorded import Reply, events, header, of, shards, streams

FAILING = {"coll-big", "bad-id"}
WHOLE = [name for name in streams() if name not in FAILING]


def script(recorded: list[Reply]) -> Script:
    last = recorded[-1]
    assert last.pbrt is not None
    version = ResumeToken.parse(bson.decode(recorded[0].pbrt)).version
    return Script(keyed(events(recorded)), last.pbrt, last.invalidated, version)


def scripts(stream: str) -> dict[str, Script]:
    found = {shard: script(of(stream, shard)) for shard in shards(stream)}
    return {**found, "config": script(of("config.shards", "config"))}


def open_stream(stream: str, *, known: int) -> PrivateStream:
    opening = of(stream, "mongos")[0]
    database = bson.decode(opening.raw)["cursor"]["ns"].partition(".")[0]
    request = parse_request(database, dict(opening.command))
    start = request.start_time
    assert start is not None
    return PrivateStream(
        request,
        dict(header()["shards"][:known]),
        start_at=start,
        topology_from=header()["start"],
        token_version=1,
    )


def tokens(raw: list[bytes]) -> list[bytes]:
    return [token_of(event) for event in raw]


def assert_same_events(actual: list[bytes], expected: list[bytes]) -> None:
    """Require equal events in the same order, except that events with equal tokens may swap."""
    assert tokens(actual) == tokens(expected)
    assert Counter(actual) == Counter(expected)
    repeated = {token for token, count in Counter(tokens(expected)).items() if count > 1}
    for one, other in zip(actual, expected, strict=True):
        assert one == other or token_of(one) in repeated


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("known", [3, 4], ids=["shard3-joins", "shard3-known"])
@pytest.mark.parametrize("stream", WHOLE)
def test_recorded_batches_merge_into_mongos_s_events(stream, known, seed):
    recorded = of(stream, "mongos")
    rnd = Random(f"{stream}-{known}-{seed}")
    driver = Driver(open_stream(stream, known=known), scripts(stream), rnd).run()

    assert_same_events(driver.events, list(events(recorded)))
    assert driver.taken[-1].closed == (recorded[-1].cursor_id == 0)
    if driver.taken[-1].closed:
        assert driver.taken[-1].pbrt == recorded[-1].pbrt
        assert not driver.taken[-1].events
    assert "shard3" in driver.opened or driver.taken[-1].closed
