"""Warns of options that match nothing in the cluster, and of what has no change stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from typing import Any

from pymongo.errors import PyMongoError

from spark_sink.errors import MESSAGE_LIMIT, say
from spark_sink.options.java_patterns import compiled
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.snapshot.planner import SYSTEM_DATABASES
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
    given = parse_options(options)
    try:
        warnings = [*_warnings(given)]
    except PyMongoError:
        return
    for each in warnings:
        text = f"warning: {each}"
        if len(text) > MESSAGE_LIMIT:
            text = f"{text[: MESSAGE_LIMIT - 1]}…"
        say(text)


def _warnings(options: StreamOptions) -> Iterator[str]:
    """Return the warnings, each on a line. Raises PyMongoError."""
    scope, signals = options.scope, options.signal_collection
    with closing(RouterClient(options)) as client:
        every = [
            each for each in client.mongo.list_database_names() if each not in SYSTEM_DATABASES
        ]
        listed = every if scope.database is None else [scope.database]
        listed += [] if signals is None else [signals[0]]
        if len(listed) > _MAX_DATABASES:
            return
        kinds = {
            (database, found["name"]): str(found.get("type", "collection"))
            for database in dict.fromkeys(listed)
            for found in client.mongo[database].list_collections(
                nameOnly=True, authorizedCollections=True
            )
            if not found["name"].startswith("system.")
        }
    names = [".".join(each) for each in kinds]
    wanted = [*scope.names, *([] if signals is None else [".".join(signals)])]
    absent = []
    for name in dict.fromkeys(wanted):
        present = names if "." in name else every
        if name not in present:
            close = get_close_matches(name, present, n=1)
            absent.append(f"{name} (did you mean {close[0]}?)" if close else name)
    if absent:
        yield f"the cluster does not have {', '.join(absent)}: correct the name, or create it"
    inside = [each for each in kinds if scope.accepts(*each)]
    if unmatched := [*_unmatched(options, names, every, inside)]:
        yield f"nothing matches {', '.join(unmatched)}: correct the option, or create it"
    left_out = sorted(
        f"{_NO_COLLECTIONS[kinds[each]]} {'.'.join(each)}"
        for each in inside
        if kinds[each] in _NO_COLLECTIONS
    )
    if left_out:
        yield f"{', '.join(left_out)}: left out, because MongoDB has no change stream of it"


def _unmatched(
    options: StreamOptions,
    names: list[str],
    databases: list[str],
    inside: list[tuple[str, str]],
) -> Iterator[str]:
    """Return the entries that match nothing, with their options; `inside` is in the scope.

    The names of include lists are left out, because they are absent.
    """
    scope, snapshot, chosen = options.scope, options.snapshot, [".".join(e) for e in inside]
    given: list[tuple[str, Iterable[str], list[str], bool]] = [
        ("database.exclude.list", scope.exclude_databases, databases, scope.literal),
        ("collection.exclude.list", scope.exclude_collections, names, scope.literal),
        ("snapshot.include.collection.list", snapshot.collections, chosen, False),
        ("snapshotFilters", snapshot.filters or (), chosen, True),
    ]
    if not scope.literal:
        given[2:2] = [
            ("database.include.list", scope.include_databases, databases, False),
            ("collection.include.list", scope.include_collections, names, False),
        ]
    for option, entries, present, are_names in given:
        for entry in entries:
            matches: Callable[[str], Any] = entry.__eq__
            if not are_names:
                matches = compiled(entry).fullmatch
            if not any(map(matches, present)):
                yield f"{entry} of {option}"
    for option, edits in (
        ("field.exclude.list", options.excluded_fields),
        ("field.masks", options.masked_fields),
        ("field.renames", options.renamed_fields),
    ):
        for edit in edits:
            if not any(edit.concerns(*each) for each in inside):
                yield f"{edit.database}.{edit.collection} of {option}"
