"""Writes to all shards at a steady rate until it is ended; prints a line once it has begun."""

import sys
import time
from typing import Any

from pymongo import MongoClient


def main() -> None:
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
        elif late > 1:  # the cluster is slower than asked for: no catching up
            begun, number = time.perf_counter(), 0


if __name__ == "__main__":
    main()
