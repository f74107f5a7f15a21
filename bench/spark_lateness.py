"""From a write's acknowledgement to its arrival in a program that follows the stream."""

import itertools
import json
import time
from contextlib import ExitStack
from select import select
from statistics import quantiles
from typing import Any

from pymongo import MongoClient, WriteConcern

from bench.processes import spawn
from bench.writes import COLLECTION, DATABASE, uneven, write_paced

_SETTLING = 3.0  # seconds from the line that says that a stream runs to the first write that counts


def late(mongos: str, first: int, count: int, pause: float, *follower: str) -> dict[str, float]:
    """Write to one shard; return the median and the 99th percentile of the latency in ms.

    Args:
        mongos: the URI that the writes go through.
        first: the number of the first document that counts.
        count: how many count.
        pause: seconds between two writes.
        follower: a module and its arguments: it prints a line when it follows, and at last as JSON
            when the first ``--events`` documents from ``--first`` on arrived.
    """
    wanted = ("--events", str(count), "--first", str(first))
    earlier = itertools.count(first - 500_000)
    with (
        spawn("-m", *follower, *wanted) as process,
        ExitStack() as end,
        MongoClient[dict[str, Any]](mongos) as client,
    ):
        majority = WriteConcern("majority")
        documents = client[DATABASE].get_collection(COLLECTION, write_concern=majority)
        end.callback(process.kill)  # which otherwise waits for ever if a write fails
        assert process.stdout is not None
        while not select([process.stdout], [], [], 0.5)[0]:
            documents.insert_one({"_id": next(earlier), "s": 0})
        process.stdout.readline()
        time.sleep(_SETTLING)
        acknowledged = write_paced(documents, first, uneven(count, pause))
        printed, _ = process.communicate(timeout=120)
    arrivals = json.loads(printed.splitlines()[-1])["arrivals"]
    found = [
        (arrivals[str(number)] - written) * 1e3
        for number, written in acknowledged.items()
        if str(number) in arrivals
    ]
    shares = quantiles(found, n=100)
    return {"p50": shares[49], "p99": shares[98]}
