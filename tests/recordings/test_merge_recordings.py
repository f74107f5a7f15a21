"""Recorded shard batches, cut and ordered at random, merge into exactly mongos's events."""

from collections import Counter
from random import Random

import bson
import pytest

from router.request.stream_request import parse_request
from shard_client.bson.resume_token import ResumeToken
from shard_client.remote_cursor.cursor_reply import token_key, token_of
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


def hosts(*, known: int = 4) -> dict[str, str]:
    return dict(header()["shards"][:known])


def command_of(stream: str) -> tuple[str, dict]:
    reply = of(stream, "mongos")[0]
    namespace = bson.decode(reply.raw)["cursor"]["ns"]
    return namespace.partition(".")[0], dict(reply.command)


def open_stream(stream: str, *, known: int = 4, options: dict | None = None) -> PrivateStream:
    database, command = command_of(stream)
    if options is not None:
        spec = command["pipeline"][0]["$changeStream"]
        kept = {k: v for k, v in spec.items() if k != "startAtOperationTime"}
        stages = command["pipeline"][1:]
        command["pipeline"] = [{"$changeStream": {**kept, **options}}, *stages]
    request = parse_request(database, command)
    start = request.start_time
    assert start is not None
    return PrivateStream(
        request,
        hosts(known=known),
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


@pytest.mark.parametrize("stream", WHOLE)
def test_resuming_after_any_event_gives_the_rest(stream):
    rnd = Random(stream)
    recorded = list(events(of(stream, "mongos")))
    for _ in range(12):
        token = rnd.choice(tokens(recorded))
        key = token_key(token)
        if ResumeToken.parse(bson.decode(token)).from_invalidate:
            continue
        merged = open_stream(stream, options={"resumeAfter": bson.decode(token)})
        driver = Driver(merged, scripts(stream), rnd).run()
        rest = [event for event in recorded if token_key(token_of(event)) > key]
        assert_same_events(driver.events, rest)
        assert token_key(driver.taken[0].pbrt) >= key


def test_a_version_1_token_resumes_a_version_2_stream():
    """Splitting large events makes 6.0's shards use version 2, while a client may use version 1."""
    older = next(
        event
        for event in events(of("db", "mongos"))
        if bson.decode(event).get("ns", {}).get("coll") == "big"
    )
    expected = list(events(of("coll-big-split", "mongos")))
    for seed in range(5):
        options = {"resumeAfter": bson.decode(token_of(older))}
        merged = open_stream("coll-big-split", options=options)
        driver = Driver(merged, scripts("coll-big-split"), Random(seed)).run()
        assert_same_events(driver.events, expected[1:])
