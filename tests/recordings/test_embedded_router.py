"""The recorded workload, run live through the router, gives the real mongos's events."""

import random
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import bson
import pymongo
import pytest
from bson import Timestamp

from tests.harness.clusters import Client, EmbeddedProcess
from tests.harness.routers import RouterProcess
from tests.recordings import recorded
from tests.recordings.draining import Drained, drain
from tests.recordings.normalised import Normaliser, settled
from tests.recordings.workload import STREAMS, setup, workload

SHARDS = ["shard0", "shard1", "shard2", "shard3"]
LAST = {"_id": "last"}
_DIFFERS = re.compile("82[0-9A-F]{30,}|127.0.0.1:[0-9]+|size: [0-9]+ .0x[0-9A-F]+")

pytestmark = pytest.mark.timeout(180)


@dataclass
class Run:
    """The events that a client received during the workload, and each stream read afterwards."""

    live: list[dict[str, Any]]
    drained: dict[str, Drained]
    normaliser: Normaliser


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with (
        EmbeddedProcess(3, {"noop_interval": 0.2}) as cluster,
        RouterProcess(
            [f"--configdb={cluster.configdb}", "--port=0", f"--upstream={cluster.mongos_uri}"]
        ) as router,
    ):
        client: Client
        with pymongo.MongoClient(router.uri) as client:
            setup(client, SHARDS[:3])
            time = client.admin.command("ping")["$clusterTime"]["clusterTime"]
            start = Timestamp(time.time, time.inc + 1)
            live: list[dict[str, Any]] = []
            watcher = threading.Thread(target=_watch, args=(client, start, live))
            watcher.start()
            workload(client, SHARDS[:3], cluster.start_shard, random.Random(1))
            watcher.join(30)
            assert not watcher.is_alive()
            end = client.admin.command("ping")["$clusterTime"]["clusterTime"]
            drained = {name: drain(client, name, start, end) for name in STREAMS}
        yield Run(live, drained, Normaliser(live))


def _watch(client: Client, start: Timestamp, live: list[dict[str, Any]]) -> None:
    """Watch the whole cluster from before the workload until its last insert."""
    with client.watch(show_expanded_events=True, start_at_operation_time=start) as stream:
        for event in stream:
            live.append(event)
            if event.get("documentKey") == LAST:
                return


@pytest.fixture(scope="module")
def real() -> Normaliser:
    return Normaliser(recorded_events("cluster-expanded"))


def recorded_events(name: str) -> list[dict[str, Any]]:
    return [bson.decode(event) for event in recorded.events(recorded.of(name, "mongos"))]


def test_a_live_watcher_gets_all_events(run: Run, real: Normaliser) -> None:
    expected = recorded_events("cluster-expanded")
    texts = [run.normaliser.text(e) for e in settled(run.live)]
    assert texts == [real.text(e) for e in settled(expected)]


@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_returns_mongos_s_events(run: Run, real: Normaliser, name: str) -> None:
    events, expected = settled(run.drained[name].events), settled(recorded_events(name))
    assert [run.normaliser.text(e) for e in events] == [real.text(e) for e in expected]
    assert [run.normaliser.encoded(e) for e in events] == [real.encoded(e) for e in expected]


@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_ends_as_on_mongos(run: Run, name: str) -> None:
    replies = recorded.of(name, "mongos")
    failures = [reply.document for reply in replies if reply.document.get("ok") == 0]
    expected = [(each["code"], _DIFFERS.sub("…", each["errmsg"])) for each in failures]
    error = run.drained[name].error
    ended = [] if error is None else [error]
    assert [(code, _DIFFERS.sub("…", message)) for code, message in ended] == expected
    assert run.drained[name].closed == (replies[-1].cursor_id == 0 and not failures)
