"""Watched writes: the time at which each was acknowledged and at which its event arrived."""

import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

from bench.processes import spawn
from tests.harness.clusters import TestCluster

DATABASE, COLLECTION = "bench", "events"

Documents = Collection[dict[str, Any]]


def spread(cluster: TestCluster) -> None:
    """Shard the collection by ``s``: documents with ``s`` 0, 1, … are on shard 0, 1, …"""
    namespace = f"{DATABASE}.{COLLECTION}"
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        admin, shards = client.admin, list(cluster.shards)
        admin.command("balancerStop")
        admin.command("enableSharding", DATABASE, primaryShard=shards[0])
        admin.command("shardCollection", namespace, key={"s": 1})
        for number in range(1, len(shards)):
            admin.command("split", namespace, middle={"s": number})
        for number, shard in enumerate(shards[1:], 1):
            admin.command("moveChunk", namespace, find={"s": number}, to=shard)


@dataclass(slots=True)
class Watcher:
    """A change stream read in a thread that records the arrival time of each document's event.

    ``arrived`` maps a document's ``_id`` to a time of ``time.perf_counter``.
    """

    uri: str
    arrived: dict[Any, float] = field(default_factory=dict)
    events: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _open: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the stream and return when it is open.

        Raises:
            RuntimeError: the stream is not open after 30 seconds.
        """
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        if not self._open.wait(30):
            raise RuntimeError(f"no stream from {self.uri}")

    def stop(self) -> None:
        """Close the stream."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(30)

    def wait_for(self, number: int, seconds: float = 60.0) -> float:
        """Return the time at which the event of document ``number`` arrived.

        Raises:
            RuntimeError: it does not arrive within ``seconds``.
        """
        deadline = time.perf_counter() + seconds
        while number not in self.arrived:
            if time.perf_counter() > deadline:
                raise RuntimeError(f"event {number} did not come through {self.uri}")
            time.sleep(0.001)
        return self.arrived[number]

    def _read(self) -> None:
        with (
            MongoClient[dict[str, Any]](self.uri) as client,
            client[DATABASE][COLLECTION].watch() as stream,
        ):
            self._open.set()
            while not self._stop.is_set():
                event = stream.try_next()
                if event is not None:
                    self.events += 1
                    self.arrived[event["fullDocument"]["_id"]] = time.perf_counter()


def write_paced(documents: Documents, first: int, pauses: list[float]) -> dict[int, float]:
    """Insert a document on shard 0 after each pause; return the acknowledgement times."""
    acknowledged = {}
    for number, pause in enumerate(pauses, first):
        time.sleep(pause)
        documents.insert_one({"_id": number, "s": 0, "pad": "x" * 200})
        acknowledged[number] = time.perf_counter()
    return acknowledged


def uneven(count: int, mean: float) -> list[float]:
    """Return ``count`` random pauses around ``mean`` seconds, to avoid synchrony with timers."""
    dice = random.Random(5)
    return [dice.uniform(0.5 * mean, 1.5 * mean) for _ in range(count)]


@contextmanager
def busy_shards(cluster: TestCluster, rate: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process during the block that writes ``rate`` documents a second to each shard."""
    shards = len(cluster.shards)
    process = spawn("-m", "bench.background_writes", cluster.mongos_uri, str(shards), str(rate))
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.wait()


def note_round_trips(uri: str, count: int) -> list[float]:
    """Return the seconds of ``count`` no-op writes with majority write concern on the member at
    ``uri``.

    This is the cost of a no-op write without the router (docs/protocol.md#sharded-cluster).
    """
    command = {"appendOplogNote": 1, "data": {"msg": json.dumps("bench")}}
    took = []
    with MongoClient[dict[str, Any]](uri) as client:
        for _ in range(count):
            begun = time.perf_counter()
            client.admin.command({**command, "writeConcern": {"w": "majority"}})
            took.append(time.perf_counter() - begun)
    return took
