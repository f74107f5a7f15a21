"""Write to all shards at a steady rate until terminated; print a line after connecting.

Usage: background_writes URI SHARDS RATE, where RATE is documents a second for each shard.
"""

import sys
import time
from typing import Any

from pymongo import MongoClient


def main() -> None:
    """Write until the process is terminated."""
    uri, shards, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    documents = client["bench"]["events"]
    step = 1 / (rate * shards)
    begun, number = time.perf_counter(), 0
    print("writing", flush=True)
    while True:
        documents.insert_one({"s": number % shards, "pad": "x" * 200})
        number += 1
        late = time.perf_counter() - begun - number * step
        if late < 0:
            time.sleep(-late)
        elif late > 1:  # the cluster cannot keep the rate: drop the backlog
            begun, number = time.perf_counter(), 0


if __name__ == "__main__":
    main()
