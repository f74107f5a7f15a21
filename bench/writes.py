"""Writes that are watched: when each was acknowledged, and when its event arrived.

Run as a program, it writes to some shards at a steady rate: it prints a line when it starts to
write and stops when a line arrives on stdin. Then it prints as JSON each document's number and the
time of its acknowledgement (``time.perf_counter``, one clock for all processes of a machine).
"""

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from statistics import quantiles
from typing import Any

from pymongo import MongoClient, WriteConcern
from pymongo.collection import Collection

from bench.programs import Program
from tests.harness.clusters import TestCluster

DATABASE, COLLECTION = "bench", "events"
_AT_A_TIME = 1_000
_earlier = count(-2_000_000_000)  # the numbers of documents before those that are measured

Documents = Collection[dict[str, Any]]


def shard_evenly(cluster: TestCluster) -> None:
    """Shard the collection by ``s``: documents with ``s`` 0, 1, … are on shard 0, 1, …"""
    namespace = f"{DATABASE}.{COLLECTION}"
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        admin, shards = client.admin, list(cluster.shards)
        if cluster.real:  # the embedded cluster has no balancer
            admin.command("balancerStop")
        admin.command("enableSharding", DATABASE, primaryShard=shards[0])
        admin.command("shardCollection", namespace, key={"s": 1})
        for number, shard in enumerate(shards[1:], 1):
            admin.command("split", namespace, middle={"s": number})
            admin.command("moveChunk", namespace, find={"s": number}, to=shard)


def fill(cluster: TestCluster, documents: int, document: Callable[[int], dict[str, Any]]) -> str:
    """Insert documents 0 and up, on all shards in turn; return the start time for ``drain``.

    Args:
        cluster: the cluster, whose collection ``shard_evenly`` has sharded.
        documents: how many.
        document: makes the fields of a document from its number, except ``_id`` and ``s``.
    """
    shards = len(cluster.shards)
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        start = client.admin.command("ping")["$clusterTime"]["clusterTime"]
        for first in range(0, documents, _AT_A_TIME):
            numbers = range(first, min(documents, first + _AT_A_TIME))
            batch = [{"_id": n, "s": n % shards, **document(n)} for n in numbers]
            client[DATABASE][COLLECTION].insert_many(batch, ordered=False)
    return f"{start.time}:{start.inc + 1}"


def measure_latency(
    mongos: str,
    first: int,
    pauses: Sequence[float],
    *follower: str,
    settle: float = 0.0,
    meanwhile: AbstractContextManager[object] | None = None,
) -> dict[str, float]:
    """Write a document on shard 0 after each pause; return ``percentiles`` their latencies.

    A latency is the time from a write's acknowledgement by a majority to its arrival.

    Args:
        mongos: the URI that the writes go through.
        first: the number of the first document.
        pauses: seconds before each write.
        follower: a module and its arguments. It prints a line when it follows the stream, for which
            some need to see a write, and, when it has the event of document ``--until``, the times
            of ``arrivals`` by number as JSON.
        settle: seconds from that line to the first write.
        meanwhile: a context from before the first write to the last arrival.

    Raises:
        RuntimeError: the follower ends before that, has not the event after two minutes, or lacks
            an event before it.
    """
    until = str(first + len(pauses) - 1)
    with (
        Program(*follower, "--until", until) as program,
        MongoClient[dict[str, Any]](mongos) as client,
    ):
        majority = WriteConcern("majority")
        documents = client[DATABASE].get_collection(COLLECTION, write_concern=majority)
        while not program.begins_within(0.5):
            documents.insert_one({"_id": next(_earlier), "s": 0})
        program.line()
        time.sleep(settle)
        with meanwhile or nullcontext():
            acknowledged = write_paced(documents, first, pauses)
            arrivals = json.loads(program.line(120))["arrivals"]
    return percentiles(latencies(acknowledged, arrivals))


def write_paced(documents: Documents, first: int, pauses: Sequence[float]) -> dict[int, float]:
    """Insert a document on shard 0 after each pause; return the acknowledgement times."""
    acknowledged = {}
    for number, pause in enumerate(pauses, first):
        time.sleep(pause)
        documents.insert_one({"_id": number, "s": 0, "pad": "x" * 200})
        acknowledged[number] = time.perf_counter()
    return acknowledged


def random_pauses(count: int, mean: float) -> list[float]:
    """Return ``count`` random pauses around ``mean`` seconds, to avoid synchrony with timers."""
    dice = random.Random(5)
    return [dice.uniform(0.5 * mean, 1.5 * mean) for _ in range(count)]


def latencies(acknowledged: Mapping[Any, float], arrivals: Mapping[str, float]) -> list[float]:
    """Return the time of each document, by its number, from acknowledgement to arrival.

    Raises:
        RuntimeError: an event has not arrived.
    """
    missing = [number for number in acknowledged if str(number) not in arrivals]
    if missing:
        raise RuntimeError(f"{len(missing)} of {len(acknowledged)} events have not arrived")
    return [arrivals[str(number)] - at for number, at in acknowledged.items()]


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the 50th, 90th and 99th percentile and the largest of some times, in ms."""
    shares = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    chosen = {"p50": shares[49], "p90": shares[89], "p99": shares[98], "most": max(seconds)}
    return {name: value * 1e3 for name, value in chosen.items()}


def main() -> None:
    """Write with one thread per shard until a line arrives on stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("--shards", type=int, nargs="+", required=True, help="values of ``s``")
    parser.add_argument("--rate", type=float, required=True, help="writes a second on each shard")
    parser.add_argument("--first", type=int, default=0, help="the first document's number")
    args = parser.parse_args()
    client: MongoClient[dict[str, Any]] = MongoClient(args.uri)
    documents = client[DATABASE].get_collection(COLLECTION, write_concern=WriteConcern("majority"))
    stop, numbers = threading.Event(), count(args.first)
    acknowledged: dict[int, float] = {}

    def write(shard: int) -> None:
        step = 1 / args.rate
        begun = time.perf_counter()
        for done in count(1):
            number = next(numbers)
            documents.insert_one({"_id": number, "s": shard, "pad": "x" * 200})
            acknowledged[number] = time.perf_counter()
            # A writer that is late makes no pauses until it has caught up.
            if stop.wait(max(0.0, begun + done * step - time.perf_counter())):
                return

    threads = [threading.Thread(target=write, args=(shard,)) for shard in args.shards]
    for thread in threads:
        thread.start()
    print("writing", flush=True)
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps(acknowledged), flush=True)


if __name__ == "__main__":
    main()
