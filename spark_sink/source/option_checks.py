"""Checks of options against the collections of the cluster, when a query is loaded.

A query warns of options that match nothing, and of what has no change stream. It refuses to mask a
shard key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches

from pymongo.errors import OperationFailure, PyMongoError

from spark_sink.console import say
from spark_sink.errors import within_limit
from spark_sink.options.java_patterns import compiled
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.rows.field_edits import key_is_masked
from spark_sink.snapshot.catalog import SYSTEM_DATABASES
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.stream.router_client import RouterClient

# The most databases whose collections are listed.
_MAX_DATABASES = 1000
_NO_COLLECTIONS = {"view": "the view", "timeseries": "the time series collection"}


def warn_of_unmatched_names(options: Mapping[str, str]) -> None:
    """Print warnings of names and entries that match nothing, and of what has no change stream.

    It is no error: a collection is followed as soon as it is created. Without the right to list
    collections, or a router with an upstream, nothing is printed.

    Args:
        options: of the source, with `uri`.

    Raises OptionError.
    """
    parsed = parse_options(options)
    try:
        warnings = [*_warnings(parsed)]
    except PyMongoError:
        return
    for warning in warnings:
        say(within_limit(f"warning: {warning}"))


def require_maskable(client: RouterClient, options: StreamOptions) -> None:
    """Raise StreamError if a field is to be masked that is a part of a collection's shard key.

    Without the right to read shard keys, the task of the first event raises it.
    """
    planner = ChunkPlanner(client.mongo, options.scope, options.snapshot)
    try:
        collections = client.with_retries(planner.collections)
    except OperationFailure:
        return
    for collection in collections:
        for edit in options.masked_fields:
            is_of_key = any(edit.meets(field.encode().split(b".")) for field in collection.key)
            if is_of_key and edit.concerns(collection.database, collection.name):
                raise key_is_masked(edit, str(collection))


def _warnings(options: StreamOptions) -> Iterator[str]:
    """Return the warnings, each on a line. Raises PyMongoError."""
    scope, signals = options.scope, options.signal_collection
    with closing(RouterClient(options)) as client:
        databases = [
            name for name in client.mongo.list_database_names() if name not in SYSTEM_DATABASES
        ]
        listed = databases if scope.database is None else [scope.database]
        listed = [*listed, *(signals or ())[:1]]
        if len(listed) > _MAX_DATABASES:
            return
        kinds = {
            (database, entry["name"]): str(entry.get("type", "collection"))
            for database in dict.fromkeys(listed)
            for entry in client.mongo[database].list_collections(
                nameOnly=True, authorizedCollections=True
            )
            if not entry["name"].startswith("system.")
        }
    if unmatched := [*_unmatched(options, [*kinds], databases)]:
        yield f"nothing matches {', '.join(unmatched)}: correct the option, or create it"
    left_out = sorted(
        f"{_NO_COLLECTIONS[kind]} {'.'.join(namespace)}"
        for namespace, kind in kinds.items()
        if kind in _NO_COLLECTIONS and scope.accepts(*namespace)
    )
    if left_out:
        yield f"{', '.join(left_out)}: left out, because MongoDB has no change stream of it"


def _unmatched(
    options: StreamOptions, collections: list[tuple[str, str]], databases: list[str]
) -> Iterator[str]:
    """Return the entries that match none of these collections or databases, with their options."""
    scope, snapshot, signals = options.scope, options.snapshot, options.signal_collection
    inside = [namespace for namespace in collections if scope.accepts(*namespace)]
    names, inside_names = (
        [".".join(namespace) for namespace in group] for group in (collections, inside)
    )
    listed = [f"{scope.database}.{name}" for name in scope.collections]
    chosen = [entry for entry in snapshot.collections if entry not in inside_names]
    whole = [] if listed or scope.database is None else [scope.database]
    entries_of: list[tuple[str, Iterable[str], list[str], bool]] = [
        ("database", whole, databases, True),
        ("collection", listed, names, True),
        ("signalCollection", [] if signals is None else [".".join(signals)], names, True),
        ("database.include.list", scope.include_databases, databases, scope.literal),
        ("database.exclude.list", scope.exclude_databases, databases, scope.literal),
        ("collection.include.list", scope.include_collections, names, scope.literal),
        ("collection.exclude.list", scope.exclude_collections, names, scope.literal),
        ("snapshot.include.collection.list", chosen, inside_names, False),
        ("snapshotFilters", snapshot.filters or (), inside_names, True),
    ]
    for option, entries, present, are_names in entries_of:
        for entry in entries:
            if entry in present if are_names else any(map(compiled(entry).fullmatch, present)):
                continue
            close = get_close_matches(entry, present, n=1) if are_names else []
            yield f"{entry} of {option}" + (f" (did you mean {close[0]}?)" if close else "")
    for option, edits in (
        ("field.exclude.list", options.excluded_fields),
        ("field.masks", options.masked_fields),
        ("field.renames", options.renamed_fields),
    ):
        for edit in edits:
            if not any(edit.concerns(*namespace) for namespace in inside):
                yield f"{edit.database}.{edit.collection} of {option}"
