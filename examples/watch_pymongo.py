"""Watch a collection with PyMongo; after a restart, resume where the last run ended.

Usage: watch_pymongo.py [URI [STATE_FILE]]

A drop of the collection ends the stream with an invalidate event. The next run starts after it,
which start_after can do and resume_after cannot.
"""

import sys
from pathlib import Path
from typing import Any

import pymongo
from bson import json_util


def main(uri: str = "mongodb://127.0.0.1:27020", state: str = "resume-token.json") -> None:
    """Print each change of shop.orders, and store how far the stream is."""
    place = Path(state)
    token = json_util.loads(place.read_text()) if place.exists() else None
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(uri)
    with (
        client,
        client.shop.orders.watch(start_after=token, full_document="updateLookup") as changes,
    ):
        print("watching", flush=True)
        while changes.alive:
            change = changes.try_next()  # None after a second without a change
            if change is not None:
                key = change.get("documentKey", {}).get("_id")
                print(change["operationType"], key, flush=True)
            if changes.resume_token == token:
                continue
            # The token moves on without changes, too. The file always holds a whole one.
            token = changes.resume_token
            written = place.with_suffix(".new")
            written.write_text(json_util.dumps(token))
            written.replace(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
