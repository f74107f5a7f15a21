"""A planner of snapshots that needs no server: its collections have numbers for documents."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import SnapshotOptions
from spark_sink.snapshot.chunk_planner import ChunkPlanner, _Piece
from spark_sink.snapshot.plan import Chunk, SnapshotCollection, bound_text


class ListedCollections(ChunkPlanner):
    """Plans reads of those collections, named "database.name", that a scope accepts.

    ``present`` are the databases and names of those there are. Each has ``documents``, every
    one a piece of its own, and takes ``tasks`` tasks of Spark; a batch has two.
    """

    def __init__(
        self, collections: Iterable[str], scope: Scope, documents: int, tasks: float
    ) -> None:
        super().__init__(Mock(), scope, SnapshotOptions(tasks=2))
        self.present = [each.split(".") for each in collections]
        self._bounds = [None, *map(bound_text, range(1, documents)), None]
        self._in_tasks = tasks

    def _list(self) -> None:
        for database, name in self.present:
            if self._scope.accepts(database, name):
                self._listed[f"{database}.{name}"] = SnapshotCollection(database, name)
                self._names[f"{database}.{name}"] = {(database, name)}

    def _sample(self, collection: SnapshotCollection, lower: str | None, *_: Any) -> list[_Piece]:
        share = 1 / (len(self._bounds) - 1)
        bounds = pairwise(self._bounds[self._bounds.index(lower) :])
        return [_Piece(Chunk(collection, *e), share, self._in_tasks * share, 1) for e in bounds]

    def problem(self, *_: Any) -> str | None:
        """Return no problem."""
        return None
