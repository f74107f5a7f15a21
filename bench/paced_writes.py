"""Write to some shards at a steady rate and report when each write was acknowledged.

The process prints a line when it starts to write and stops when a line arrives on stdin. Then it
prints as JSON each document's number and the time of its acknowledgement (``time.perf_counter``,
one clock for all processes of a machine).
"""

import argparse
import json
import sys
import threading
import time
from itertools import count
from typing import Any

from pymongo import MongoClient, WriteConcern


def main() -> None:
    """Write with one thread per shard until a line arrives on stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("--shards", type=int, nargs="+", required=True, help="values of ``s``")
    parser.add_argument(
        "--rate", type=float, required=True, help="documents a second on each shard"
    )
    parser.add_argument("--first", type=int, default=0, help="the first document's number")
    args = parser.parse_args()
    client: MongoClient[dict[str, Any]] = MongoClient(args.uri)
    documents = client["bench"].get_collection("events", write_concern=WriteConcern("majority"))
    stop, numbers = threading.Event(), count(args.first)
    acknowledged: dict[int, float] = {}

    def write(shard: int) -> None:
        step = 1 / args.rate
        begun = time.perf_counter()
        for done in count(1):
            number = next(numbers)
            documents.insert_one({"_id": number, "s": shard, "pad": "x" * 200})
            acknowledged[number] = time.perf_counter()
            # On a machine that is too slow, drop the backlog.
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
