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
    """Print each change of shop.orders, and then store its resume token."""
    place = Path(state)
    token = json_util.loads(place.read_text()) if place.exists() else None
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(uri)
    with (
        client,
        client.shop.orders.watch(start_after=token, full_document="updateLookup") as changes,
    ):
        print("watching", flush=True)
        for change in changes:
            key = change.get("documentKey", {}).get("_id")
            print(change["operationType"], key, flush=True)
            # A rename is atomic: the file always holds one whole token.
            written = place.with_suffix(".new")
            written.write_text(json_util.dumps(changes.resume_token))
            written.replace(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
