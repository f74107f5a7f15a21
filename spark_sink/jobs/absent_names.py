"""Names of collections and databases that a job follows, and that the cluster does not have."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from difflib import get_close_matches

from pymongo.errors import PyMongoError

from spark_sink.errors import MESSAGE_LIMIT
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.stream.router_client import RouterClient


def warn_of_absent_names(options: Mapping[str, str]) -> None:
    """Print a warning of names that the cluster does not have, which may be misspelled.

    It is no error: a job writes a collection as soon as it is created. Without the right to list
    collections, or a router with an upstream, nothing is printed.

    Args:
        options: of the source, with `uri`.

    Raises OptionError.
    """
    given = parse_options(options)
    try:
        absent = _absent(given)
    except PyMongoError:
        return
    if absent:
        names = ", ".join(absent)
        text = f"warning: the cluster does not have {names}: correct the name, or create it"
        if len(text) > MESSAGE_LIMIT:
            text = f"{text[: MESSAGE_LIMIT - 1]}…"
        print(text, file=sys.stderr)  # noqa: T201


def _absent(options: StreamOptions) -> list[str]:
    """Return the names that are absent, each with the most similar one. Raises PyMongoError."""
    if not options.scope.names:
        return []
    found = []
    with closing(RouterClient(options)) as client:
        databases = client.mongo.list_database_names()
        known: dict[str, list[str]] = {}
        for name in dict.fromkeys(options.scope.names):
            database, dot, _ = name.partition(".")
            if dot and database not in known:
                names = client.mongo[database].list_collection_names(authorizedCollections=True)
                known[database] = [f"{database}.{each}" for each in names]
            present = known[database] if dot else databases
            if name not in present:
                close = get_close_matches(name, present, n=1)
                found.append(f"{name} (did you mean {close[0]}?)" if close else name)
    return found
