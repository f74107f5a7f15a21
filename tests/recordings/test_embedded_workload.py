"""The recorded workload gives the same events on embedded shards as on real ones."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import bson
import pymongo
import pytest
from bson import Timestamp

from tests.harness.clusters import Client, EmbeddedProcess
from tests.recordings import recorded
from tests.recordings.draining import Drained, drain, drain_command
from tests.recordings.normalised import Normaliser, settled
from tests.recordings.workload import STREAMS, setup, workload

SHARDS = ["shard0", "shard1", "shard2", "shard3"]

_TOKEN = re.compile("82[0-9A-F]{30,}")

pytestmark = pytest.mark.timeout(180)


@dataclass
class Run:
    """A run of the workload on the embedded cluster."""

    drained: Mapping[tuple[str, str], Drained]
    normaliser: Normaliser


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with EmbeddedProcess(3, {"noop_interval": 0.2}) as cluster:
        start, end = run_workload(cluster)
        drained: dict[tuple[str, str], Drained] = {}
        for via in SHARDS:
            with cluster.direct(via) as shard:
                for name in STREAMS:
                    drained[name, via] = drain(shard, name, start, end)
        with cluster.direct("config") as config:
            stage = {"allowToRunOnConfigDB": True, "startAtOperationTime": start}
            drained["config.shards", "config"] = drain_command(
                config,
                "config",
                {"aggregate": "shards", "pipeline": [{"$changeStream": stage}], "cursor": {}},
                end,
            )
        everything = [e for via in SHARDS for e in drained["cluster-expanded", via].events]
        yield Run(drained, Normaliser(everything))


def run_workload(cluster: EmbeddedProcess) -> tuple[Timestamp, Timestamp]:
    """Run the workload through the embedded mongos; return its start and end times."""

    def add_shard() -> tuple[str, str]:
        name, host = cluster.start_shard()
        cluster.shards[name] = host
        return name, host

    client: Client
    with pymongo.MongoClient(cluster.mongos_uri) as client:
        setup(client, SHARDS[:3])
        start = client.admin.command("ping")["$clusterTime"]["clusterTime"]
        workload(client, SHARDS[:3], add_shard, random.Random(1))
        end = client.admin.command("ping")["$clusterTime"]["clusterTime"]
    return Timestamp(start.time, start.inc + 1), end


@pytest.fixture(scope="module")
def real() -> Normaliser:
    return Normaliser(e for via in SHARDS for e in recorded_events("cluster-expanded", via))


def recorded_events(name: str, via: str) -> list[dict[str, Any]]:
    return [bson.decode(event) for event in recorded.events(recorded.of(name, via))]


@pytest.mark.parametrize("via", SHARDS)
@pytest.mark.parametrize("name", STREAMS)
def test_each_shard_returns_the_recorded_events(
    run: Run, real: Normaliser, name: str, via: str
) -> None:
    drained = run.drained[name, via]
    expected = recorded_events(name, via)
    # first as text, for a readable diff, then as bytes, which include types and field order
    assert [run.normaliser.text(e) for e in drained.events] == [real.text(e) for e in expected]
    assert [run.normaliser.encoded(e) for e in drained.events] == [
        real.encoded(e) for e in expected
    ]


@pytest.mark.parametrize("via", SHARDS)
@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_ends_as_recorded(run: Run, name: str, via: str) -> None:
    replies = recorded.of(name, via)
    drained = run.drained[name, via]
    assert drained.invalidated == any(reply.invalidated for reply in replies)
    failures = [reply.document for reply in replies if reply.document.get("ok") == 0]
    expected = [(failure["code"], _TOKEN.sub("<token>", failure["errmsg"])) for failure in failures]
    ended = [] if drained.error is None else [drained.error]
    assert [(code, _TOKEN.sub("<token>", message)) for code, message in ended] == expected


@pytest.mark.parametrize("name", STREAMS)
def test_events_of_all_shards_interleave_as_recorded(run: Run, real: Normaliser, name: str) -> None:
    """Equal cluster times on several shards (drops, parallel inserts) are equal here as well."""
    ours = [event for via in SHARDS for event in run.drained[name, via].events]
    theirs = [event for via in SHARDS for event in recorded_events(name, via)]
    assert _tokens(run.normaliser, ours) == _tokens(real, theirs)


def _tokens(normaliser: Normaliser, events: list[dict[str, Any]]) -> list[Any]:
    merged = sorted(events, key=lambda event: event["_id"]["_data"])
    return [normaliser.event(event)["_id"] for event in settled(merged)]


def test_the_config_server_shows_the_new_shard(run: Run) -> None:
    [event] = run.drained["config.shards", "config"].events
    [expected] = recorded_events("config.shards", "config")
    assert list(event) == list(expected)
    assert event["operationType"] == expected["operationType"]
    assert event["ns"] == expected["ns"]
    assert event["documentKey"] == expected["documentKey"]
    assert list(event["fullDocument"]) == list(expected["fullDocument"])
    assert event["fullDocument"]["topologyTime"] < event["clusterTime"]


def test_version_2_gives_the_same_events_with_its_own_tokens(run: Run) -> None:
    """Newer servers also report ambiguous paths and kinds of namespaces; all else is equal."""
    with EmbeddedProcess(3, {"noop_interval": 0.2, "token_version": 2}) as cluster:
        start, end = run_workload(cluster)
        name = "cluster-expanded"
        events: list[dict[str, Any]] = []
        for via in SHARDS:
            with cluster.direct(via) as shard:
                events += drain(shard, name, start, end).events
    before = [event for via in SHARDS for event in run.drained[name, via].events]
    newer = Normaliser(events)
    assert {event["_id"]["_data"][18:22] for event in events} == {"2B04"}
    assert _without_tokens(newer, events) == _without_tokens(run.normaliser, before)


def _without_tokens(normaliser: Normaliser, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    result = [normaliser.event(event) for event in events]
    for event in result:
        del event["_id"]
        event.pop("nsType", None)
        event.get("updateDescription", {}).pop("disambiguatedPaths", None)
    return result
