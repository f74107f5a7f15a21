"""Selection of the oplog entries that a change stream reads."""

from collections.abc import Mapping
from typing import Any, Final

from embedded.change_streams.request import StreamRequest

INTERNAL_DATABASES: Final = frozenset({"admin", "config", "local"})
_EXPANDED_COMMANDS: Final = (
    "create",
    "createIndexes",
    "commitIndexBuild",
    "dropIndexes",
    "collMod",
)
NOOP_EVENTS: Final = ("shardCollection",)


class OplogFilter:
    """Selects a stream's entries from the oplog (docs/protocol.md#events).

    It drops chunk migrations, other namespaces, and kinds of operations that the stream's options
    do not request.
    """

    def __init__(self, request: StreamRequest) -> None:
        self._request = request

    def accepts(self, entry: Mapping[str, Any]) -> bool:
        """Return whether an entry of the oplog or a transaction becomes an event of the stream."""
        if entry.get("fromMigrate"):
            return False
        kind = entry["op"]
        if kind == "c":
            return self._command(entry["ns"], entry["o"])
        if kind == "n":
            return self._noop(entry)
        database, collection = split_ns(entry["ns"])
        return self._collection(database, collection) or self._view(database, collection)

    def _database(self, database: str) -> bool:
        if self._request.cluster:
            return database not in INTERNAL_DATABASES
        return database == self._request.database

    def _collection(self, database: str, collection: str) -> bool:
        if not self._database(database):
            return False
        if self._request.collection is not None:
            return collection == self._request.collection
        return not collection.startswith(("$", "system."))

    def _view(self, database: str, collection: str) -> bool:
        return (
            collection == "system.views"
            and self._request.expanded
            and self._request.collection is None
            and self._database(database)
        )

    def _command(self, ns: str, command: Mapping[str, Any]) -> bool:
        database = ns.partition(".")[0]
        if not self._database(database):
            return False
        name = next(iter(command), "")
        if name == "dropDatabase":
            return self._request.collection is None
        if name == "renameCollection":
            return any(
                self._collection(*split_ns(command[side])) for side in ("renameCollection", "to")
            )
        if name == "drop" or (name in _EXPANDED_COMMANDS and self._request.expanded):
            return self._collection(database, command[name])
        return False

    def _noop(self, entry: Mapping[str, Any]) -> bool:
        what = entry.get("o2")
        if not what or not self._request.expanded:
            return False
        is_event = any(name in what for name in NOOP_EVENTS)
        return is_event and self._collection(*split_ns(entry["ns"]))


def split_ns(ns: str) -> tuple[str, str]:
    """Return the database and the collection of a namespace."""
    database, _, collection = ns.partition(".")
    return database, collection
