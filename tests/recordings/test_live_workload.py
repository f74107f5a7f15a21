"""The recorded workload on real servers, watched through mongos and the router in parallel."""

import random
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymongo
import pytest
from bson import Timestamp

from tests.harness.clusters import Client, start_real_cluster
from tests.harness.routers import start_router
from tests.harness.until import PATIENCE
from tests.recordings.draining import Drained, drain
from tests.recordings.workload import STREAMS, setup, workload

LAST = {"_id": "last"}

pytestmark = pytest.mark.timeout(300)

Event = dict[str, Any]


class Watcher:
    """Watches the whole cluster from before the workload until its last insert."""

    def __init__(self, client: Client, start: Timestamp) -> None:
        self.events: list[Event] = []
        self._client = client
        self._start = start
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"still waiting after {len(self.events)} events"

    def _watch(self) -> None:
        with self._client.watch(
            show_expanded_events=True, start_at_operation_time=self._start
        ) as stream:
            for event in stream:
                self.events.append(event)
                if event.get("documentKey") == LAST:
                    return


@dataclass
class Seen:
    """The events from one server: during the workload, and of each stream afterwards."""

    live: list[Event]
    drained: dict[str, Drained]


@dataclass
class Run:
    """One run of the workload with the events from both servers."""

    mongos: Seen
    router: Seen


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    mongos: Client
    router: Client
    with (
        start_real_cluster(3, noop_interval=1) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri) as process,
        pymongo.MongoClient(cluster.mongos_uri) as mongos,
        pymongo.MongoClient(process.uri) as router,
    ):
        shards = list(cluster.shards)
        setup(mongos, shards)
        time = mongos.admin.command("ping")["$clusterTime"]["clusterTime"]
        start = Timestamp(time.time, time.inc + 1)
        watchers = [Watcher(client, start) for client in (mongos, router)]
        workload(router, shards, cluster.start_shard, random.Random(1))
        for watcher in watchers:
            watcher.wait()
        end = router.admin.command("ping")["$clusterTime"]["clusterTime"]
        seen = [
            Seen(
                watcher.events,
                {name: drain(client, name, start, end) for name in STREAMS},
            )
            for watcher, client in zip(watchers, (mongos, router), strict=True)
        ]
        yield Run(*seen)


def assert_same(ours: list[Event], theirs: list[Event]) -> None:
    """Require the same events in the same order.

    Events of several shards for one operation may have equal tokens. Their order is arbitrary,
    for mongos and the router alike, so they are sorted by wall time.
    """
    assert list(map(_token, ours)) == list(map(_token, theirs))
    ours, theirs = (sorted(each, key=_token_and_wall) for each in (ours, theirs))
    assert ours == theirs
    assert list(map(list, ours)) == list(map(list, theirs))


def _token(event: Event) -> str:
    return str(event["_id"]["_data"])


def _token_and_wall(event: Event) -> tuple[str, Any]:
    return _token(event), event.get("wallTime")


def test_live_watchers_get_the_same_events(run: Run) -> None:
    assert len(run.router.live) > 500
    assert_same(run.router.live, run.mongos.live)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_return_the_same_events(run: Run, name: str) -> None:
    assert_same(run.router.drained[name].events, run.mongos.drained[name].events)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_end_in_the_same_way(run: Run, name: str) -> None:
    ours, theirs = run.router.drained[name], run.mongos.drained[name]
    assert _error(ours) == _error(theirs)
    assert ours.closed == theirs.closed


def _error(drained: Drained) -> tuple[int, str] | None:
    """Return the error without the event's size, which internal fields for mongos change."""
    if drained.error is None:
        return None
    code, message = drained.error
    return code, re.sub(r"size: \d+ \(0x[0-9A-F]+\)", "size: …", message)


def test_the_workload_covers_all_ways_to_end(run: Run) -> None:
    """The comparisons above include streams that end with an error and with an invalidate."""
    drained = run.mongos.drained.values()
    assert {code for code, _ in filter(None, (each.error for each in drained))} >= {10334, 280}
    assert any(each.closed for each in drained)
