"""The requests for snapshots: who asks decides what a snapshot reads, and who may stop it.

Offsets in checkpoints have the names of the three classes that say what is read.

The mode of the query and signals choose collections by patterns. A table names what it lacks, and a
scope that gains collections is a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.dataclass_json import tagged
from spark_sink.options.java_patterns import matches_any
from spark_sink.signals.signal import DocumentFilter, SnapshotKind
from spark_sink.snapshot.chunk_planner import Selection
from spark_sink.snapshot.plan import SnapshotPlan, filter_of
from spark_sink.snapshot.unread import CollectionTokens, Namespace, ScopeGain


@dataclass(frozen=True)
class CollectionPatterns:
    """What the mode or a signal reads: collections by patterns, of which none means all.

    `conditions` filter their documents. Collections that match `excluded` were stopped by signals.
    """

    patterns: tuple[str, ...] = ()
    conditions: tuple[DocumentFilter, ...] = ()
    excluded: tuple[str, ...] = ()

    def wants(self, namespace: str) -> bool:
        """Return whether the snapshot reads this collection."""
        chosen = not self.patterns or matches_any(self.patterns, namespace)
        return chosen and not matches_any(self.excluded, namespace)

    def condition(self, namespace: str) -> dict[str, Any] | None:
        """Return the filter on the documents of a collection; None: all are read."""
        matching = (each.document for each in self.conditions if each.matches(namespace))
        return next(matching, None)

    def without(self, patterns: tuple[str, ...]) -> CollectionPatterns:
        """Return the choice without the collections that match one of these patterns."""
        return replace(self, excluded=(*self.excluded, *patterns))

    @property
    def characters(self) -> int:
        """The characters of the patterns and filters."""
        filters = (text for each in self.conditions for text in (each.collections, each.filter))
        return sum(map(len, (*self.patterns, *self.excluded, *filters)))


@dataclass(frozen=True)
class MissingDocuments:
    """What a table lacks: collections by name, and keys of documents in others, by namespace."""

    collections: tuple[str, ...] = ()
    documents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def wants(self, namespace: str) -> bool:
        """Return whether the snapshot reads this collection, or documents of it."""
        return namespace in self.collections or namespace in self.documents

    def condition(self, namespace: str) -> dict[str, Any] | None:
        """Return the filter on the documents of a collection; None: all are read."""
        keys = self.documents.get(namespace)
        return None if keys is None else filter_of(keys)


@dataclass(frozen=True)
class SnapshotRequest:
    """A snapshot that the mode of the query (the initial one), a signal or the table requests.

    Args:
        kind: initial, blocking or incremental. The stream waits for all but incremental ones.
        reads: the collections, and which of their documents.
        plan: how far it is; None before the beginning.
    """

    id: str
    kind: SnapshotKind
    reads: CollectionPatterns | MissingDocuments | ScopeGain = field(
        default=CollectionPatterns(),
        metadata=tagged(CollectionPatterns, MissingDocuments, ScopeGain),
    )
    plan: SnapshotPlan | None = None

    @classmethod
    def initial(
        cls, time: Timestamp, plan: SnapshotPlan | None = None, patterns: tuple[str, ...] = ()
    ) -> SnapshotRequest:
        """Return the request of the initial snapshot, at a cluster time."""
        return cls(f"initial-{time.time}-{time.inc}", "initial", CollectionPatterns(patterns), plan)

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream waits for the snapshot."""
        return self.kind != "incremental"

    @property
    def is_required(self) -> bool:
        """Whether the table lacks what the snapshot reads; then no signal stops it."""
        return not isinstance(self.reads, CollectionPatterns)

    @property
    def selection(self) -> Selection:
        """What the snapshot reads, for a planner."""
        documents = self.reads.documents if isinstance(self.reads, MissingDocuments) else {}
        return Selection(self.reads.wants, documents)

    def reads_whole(self, namespace: str) -> bool:
        """Return whether the snapshot reads this collection without a condition."""
        return self.reads.wants(namespace) and self.reads.condition(namespace) is None

    @property
    def unread(self) -> list[Namespace]:
        """The collections that the request names, and that the table lacks as a whole."""
        match self.reads:
            case ScopeGain():
                return [*self.reads.names]
            case MissingDocuments():
                names = (name.partition(".") for name in self.reads.collections)
                return [(database, name) for database, _, name in names]
        return []

    def unread_tokens(self, required_at: str) -> CollectionTokens:
        """Return what the request reads again, and the tokens from which the table lacks it.

        `required_at` is the token of the collections that it names.
        """
        tokens: dict[Namespace | ScopeGain, str] = dict.fromkeys(self.unread, required_at)
        if isinstance(self.reads, ScopeGain):
            tokens[self.reads] = self.reads.token
        return tokens

    @property
    def ends_unread(self) -> bool:
        """Whether collections are no longer unread at its end, also those that are gone by then."""
        return isinstance(self.reads, ScopeGain) or bool(self.unread)

    @property
    def characters(self) -> int:
        """The characters of the names and filters that a signal has given."""
        return self.reads.characters if isinstance(self.reads, CollectionPatterns) else 0
