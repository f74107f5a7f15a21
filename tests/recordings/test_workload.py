"""The recorded workload gives the recorded events on embedded shards and through the router."""

import random
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import bson
import pytest
from bson import Timestamp

from tests.conformance.streams import next_tick, now
from tests.harness.clusters import Client, TestCluster
from tests.harness.embedded_process import EmbeddedProcess
from tests.harness.routers import start_router
from tests.harness.until import PATIENCE
from tests.recordings import recorded
from tests.recordings.draining import Drained, drain, drain_command
from tests.recordings.normalised import Normaliser, settled
from tests.recordings.workload import STREAMS, setup, workload

SHARDS = ["shard0", "shard1", "shard2", "shard3"]
ROUTER, MONGOS = "router", "mongos"
EVERYTHING = "cluster-expanded"
LAST = {"_id": "last"}

_TOKEN = re.compile("82[0-9A-F]{30,}")
_ADDRESS = re.compile(r"127.0.0.1:\d+")
_SIZE = re.compile(r"size: \d+ \(0x[0-9A-F]+\)")

pytestmark = pytest.mark.timeout(600)

Event = dict[str, Any]


@dataclass
class Run:
    """The events of one run of the workload.

    ``live`` has those that a watcher received meanwhile; ``drained`` has each stream as a server
    returned it afterwards.
    """

    start: Timestamp
    end: Timestamp
    live: list[Event]
    drained: dict[tuple[str, str], Drained] = field(default_factory=dict)

    def drain(self, client: Client, via: str) -> None:
        """Read each stream of the workload from one server."""
        for name in STREAMS:
            self.drained[name, via] = drain(client, name, self.start, self.end)


def run_workload(cluster: TestCluster, client: Client, *, watched: bool = False) -> Run:
    """Run the workload by ``client``, with ``watched`` while a watcher reads from its server."""

    shards = list(cluster.shards)
    setup(client, shards)
    start = next_tick(now(client))
    live: list[Event] = []
    watcher = threading.Thread(target=_watch, args=(client, start, live), daemon=True)
    if watched:
        watcher.start()
    workload(client, shards, cluster, random.Random(1))
    if watched:
        watcher.join(PATIENCE)
        assert not watcher.is_alive(), len(live)
    return Run(start, now(client), live)


def _watch(client: Client, start: Timestamp, live: list[Event]) -> None:
    """Watch the whole cluster from before the workload until its last insert."""
    with client.watch(show_expanded_events=True, start_at_operation_time=start) as stream:
        for event in stream:
            live.append(event)
            if event.get("documentKey") == LAST:
                return


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run the workload through the router on an embedded cluster."""
    with ExitStack() as owned:
        cluster = owned.enter_context(EmbeddedProcess(3, {"noop_interval": 0.2}))
        router = owned.enter_context(start_router(cluster.configdb, cluster.mongos_uri))
        client = owned.enter_context(Client(router.uri))
        ran = run_workload(cluster, client, watched=True)
        ran.drain(client, ROUTER)
        for via in SHARDS:
            ran.drain(owned.enter_context(cluster.direct(via)), via)
        stage = {"allowToRunOnConfigDB": True, "startAtOperationTime": ran.start}
        ran.drained["config.shards", "config"] = drain_command(
            owned.enter_context(cluster.direct("config")),
            "config",
            {"aggregate": "shards", "pipeline": [{"$changeStream": stage}], "cursor": {}},
            ran.end,
        )
        yield ran


def recorded_as(via: str) -> str:
    """Return the server whose recorded replies those of ``via`` must equal."""
    return MONGOS if via == ROUTER else via


def recorded_events(name: str, via: str) -> list[Event]:
    return [bson.decode(event) for event in recorded.events(recorded.of(name, recorded_as(via)))]


def settled_at(via: str, events: list[Event]) -> list[Event]:
    """Return the events of a server; a merge's with those of the unordered bulk by their ids."""
    return [*settled(events)] if via == ROUTER else events


@pytest.fixture(scope="module")
def ours(run: Run) -> Normaliser:
    return Normaliser(event for via in SHARDS for event in run.drained[EVERYTHING, via].events)


@pytest.fixture(scope="module")
def real() -> Normaliser:
    return Normaliser(event for via in SHARDS for event in recorded_events(EVERYTHING, via))


def test_a_live_watcher_gets_all_events(run: Run, ours: Normaliser, real: Normaliser) -> None:
    texts = [ours.text(event) for event in settled(run.live)]
    assert texts == [real.text(event) for event in settled(recorded_events(EVERYTHING, ROUTER))]


@pytest.mark.parametrize("via", [*SHARDS, ROUTER])
@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_returns_the_recorded_events(
    run: Run, ours: Normaliser, real: Normaliser, name: str, via: str
) -> None:
    found = settled_at(via, run.drained[name, via].events)
    expected = settled_at(via, recorded_events(name, via))
    # first as text, for a readable diff, then as bytes, which include types and field order
    assert [*map(ours.text, found)] == [*map(real.text, expected)]
    assert [*map(ours.encoded, found)] == [*map(real.encoded, expected)]


@pytest.mark.parametrize("via", [*SHARDS, ROUTER])
@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_ends_as_recorded(run: Run, name: str, via: str) -> None:
    replies, drained = recorded.of(name, recorded_as(via)), run.drained[name, via]
    failures = [reply.document for reply in replies if reply.document.get("ok") == 0]
    expected = [(failure["code"], shown(failure["errmsg"], via)) for failure in failures]
    assert [(code, shown(text, via)) for code, text in filter(None, [drained.error])] == expected
    if via == ROUTER:
        assert drained.closed == (replies[-1].cursor_id == 0 and not failures)
    else:
        assert drained.invalidated == any(reply.invalidated for reply in replies)


def shown(message: str, via: str) -> str:
    """Return an error's message without what differs between clusters."""
    text = _TOKEN.sub("…", message)
    return _ADDRESS.sub("…", _SIZE.sub("…", text)) if via == ROUTER else text


@pytest.mark.parametrize("name", STREAMS)
def test_events_of_all_shards_interleave_as_recorded(
    run: Run, ours: Normaliser, real: Normaliser, name: str
) -> None:
    """Equal cluster times on several shards (drops, parallel inserts) are equal here as well."""
    found = [event for via in SHARDS for event in run.drained[name, via].events]
    expected = [event for via in SHARDS for event in recorded_events(name, via)]
    assert _tokens(ours, found) == _tokens(real, expected)


def _tokens(normaliser: Normaliser, events: list[Event]) -> list[Any]:
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


def test_version_2_gives_the_same_events_with_its_own_tokens(run: Run, ours: Normaliser) -> None:
    """Newer servers also report ambiguous paths and kinds of namespaces, and give documents that
    are inserted together one cluster time, without a session; all else is equal.
    """
    with EmbeddedProcess(3, {"noop_interval": 0.2, "server_version": "8.2"}) as cluster:
        with Client(cluster.mongos_uri) as client:
            newer = run_workload(cluster, client)
        events: list[Event] = []
        for via in SHARDS:
            with cluster.direct(via) as shard:
                events += drain(shard, EVERYTHING, newer.start, newer.end).events
    before = [event for via in SHARDS for event in run.drained[EVERYTHING, via].events]
    assert {event["_id"]["_data"][18:22] for event in events} == {"2B04"}
    assert _without_tokens(Normaliser(events), events) == _without_tokens(ours, before)


def _without_tokens(normaliser: Normaliser, events: list[Event]) -> list[Event]:
    result = [normaliser.event(event) for event in events]
    for event in result:
        del event["_id"], event["clusterTime"]
        for name in ("nsType", "lsid", "txnNumber"):
            event.pop(name, None)
        event.get("updateDescription", {}).pop("disambiguatedPaths", None)
    return result
