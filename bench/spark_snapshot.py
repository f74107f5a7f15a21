"""Read a collection by Spark snapshots and by pymongo, with as many threads; print the rates."""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from pymongo import MongoClient

from spark_sink import local_session

ROUNDS = 3
"""How often each way of reading is measured, in turns; a first reading by Spark is not counted."""


def main() -> None:
    """Read the collection that the command line describes and print documents a second as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router", required=True, help="connection string")
    parser.add_argument("--mongos", required=True, help="connection string")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--documents", type=int, required=True, help="their _id is 0 and up")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    database, _, collection = args.namespace.partition(".")
    spark = local_session("bench", cores=args.threads)

    def snapshot(form: str) -> float:
        rows = (
            spark.read.format("mergerouter")
            .options(uri=args.router, database=database, collection=collection, mode="snapshot")
            .option("documents", form)
            .option("snapshotChunkRows", args.documents // (4 * args.threads))
            .load()
        )
        begun = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - begun
        return int(args.documents) / seconds

    def pymongo(_: str) -> float:
        with MongoClient[dict[str, Any]](args.mongos) as client:
            documents = client[database][collection]
            step = args.documents // args.threads

            def count(part: int) -> int:
                until = {} if part == args.threads - 1 else {"$lt": (part + 1) * step}
                wanted = {"_id": {"$gte": part * step, **until}}
                return sum(1 for _ in documents.find(wanted))

            begun = time.perf_counter()
            with ThreadPoolExecutor(args.threads) as threads:
                read = sum(threads.map(count, range(args.threads)))
            seconds = time.perf_counter() - begun
        if read != args.documents:
            raise RuntimeError(f"{read} of {args.documents} documents")
        return float(read / seconds)

    snapshot("json")
    ways = {"json": snapshot, "raw": snapshot, "pymongo": pymongo}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, read in ways.items():
            found[name].append(read(name))
    spark.stop()
    print(json.dumps({name: median(rates) for name, rates in found.items()}))


if __name__ == "__main__":
    main()
