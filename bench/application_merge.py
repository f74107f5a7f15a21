"""A merge without a router, in an application: pymongo's watch() on every shard, and heapq."""

import argparse
import heapq
import json
import time
from typing import Any

from bson import Timestamp
from pymongo import MongoClient
from pymongo.change_stream import ChangeStream


def main() -> None:
    """Merge the streams of the given ports; print events, seconds and CPU seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--start", required=True, help="startAtOperationTime SECONDS:INCREMENT")
    args = parser.parse_args()
    start = Timestamp(*map(int, args.start.split(":")))
    clients = [
        MongoClient[dict[str, Any]]("127.0.0.1", port, directConnection=True) for port in args.ports
    ]
    streams = [client.watch(start_at_operation_time=start) for client in clients]
    begun, cpu = time.perf_counter(), time.process_time()
    events = merge(streams, args.events)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"events": events, "seconds": seconds, "cpu": cpu}))


def merge(streams: list[ChangeStream[dict[str, Any]]], stop_after: int) -> int:
    """Merge by token until ``stop_after`` events have been delivered, and return their number.

    The heap holds the first unread event of each stream, or its resume token if it has none.
    """
    heads: list[tuple[str, int, bool]] = []
    events, last = 0, ""
    for number in range(len(streams)):
        heapq.heappush(heads, _head(streams, number))
    while events < stop_after:
        token, number, is_event = heads[0]
        if is_event:
            assert token >= last
            last = token
            events += 1
        heapq.heapreplace(heads, _head(streams, number))
    return events


def _head(streams: list[ChangeStream[dict[str, Any]]], number: int) -> tuple[str, int, bool]:
    event = streams[number].try_next()
    if event is not None:
        return event["_id"]["_data"], number, True
    token = streams[number].resume_token
    return (token["_data"] if token else ""), number, False


if __name__ == "__main__":
    main()
