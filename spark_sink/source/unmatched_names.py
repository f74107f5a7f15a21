"""Warnings of options that match nothing in the cluster, and of what has no change stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from functools import partial
from typing import Any

from pymongo.errors import PyMongoError

from spark_sink.errors import MESSAGE_LIMIT
from spark_sink.options.java_patterns import compiled
from spark_sink.options.scope import NamespaceLists
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
        print(text, file=sys.stderr)  # noqa: T201


def _warnings(options: StreamOptions) -> Iterator[str]:
    """Return the warnings, each on a line. Raises PyMongoError."""
    scope, signals = options.scope, options.signals.collection
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
    absent = [*_absent(wanted, names, every)]
    if absent:
        yield f"the cluster does not have {', '.join(absent)}: correct the name, or create it"
    inside = [".".join(each) for each in kinds if scope.accepts(*each)]
    unmatched = [*_of_lists(scope.lists, names, every), *_of_documents(options, inside)]
    if unmatched:
        yield f"nothing matches {', '.join(unmatched)}: correct the option, or create it"
    left_out = sorted(
        f"{_NO_COLLECTIONS[kind]} {'.'.join(place)}"
        for place, kind in kinds.items()
        if kind in _NO_COLLECTIONS and scope.accepts(*place)
    )
    if left_out:
        yield f"{', '.join(left_out)}: left out, because MongoDB has no change stream of it"


def _absent(wanted: Iterable[str], names: list[str], databases: list[str]) -> Iterator[str]:
    """Return the names that are absent, each with the most similar one."""
    for name in dict.fromkeys(wanted):
        present = names if "." in name else databases
        if name not in present:
            close = get_close_matches(name, present, n=1)
            yield f"{name} (did you mean {close[0]}?)" if close else name


def _of_lists(lists: NamespaceLists, names: list[str], databases: list[str]) -> Iterator[str]:
    """Return the entries of lists that match nothing, with their lists.

    Literal names of include lists are left out, because `_absent` returns them.
    """
    for rule, of_databases, of_collections in (
        ("exclude", lists.not_databases, lists.not_collections),
        *((("include", lists.databases, lists.collections),) if not lists.literal else ()),
    ):
        for kind, entries, present in (
            ("database", of_databases, databases),
            ("collection", of_collections, names),
        ):
            for entry in entries:
                matches = partial(str.__eq__, entry) if lists.literal else _pattern(entry)
                if not any(map(matches, present)):
                    yield f"{entry} of {kind}.{rule}.list"


def _of_documents(options: StreamOptions, names: list[str]) -> Iterator[str]:
    """Return the entries, of options for documents, that match none of the collections."""
    snapshot = options.snapshot
    for entry in snapshot.collections:
        if not any(map(_pattern(entry), names)):
            yield f"{entry} of snapshot.include.collection.list"
    yield from (
        f"{each} of snapshotFilters" for each in snapshot.filters or () if each not in names
    )
    places = [each.partition(".") for each in names]
    for option, edits in (
        ("field.exclude.list", options.excluded_fields),
        ("field.masks", options.masked_fields),
        ("field.renames", options.renamed_fields),
    ):
        for edit in edits:
            if not any(edit.concerns(database, name) for database, _, name in places):
                yield f"{edit.database}.{edit.collection} of {option}"


def _pattern(entry: str) -> Callable[[str], Any]:
    return compiled(entry).fullmatch
