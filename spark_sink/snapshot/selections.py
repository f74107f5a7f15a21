"""What a snapshot reads, by who asks for it: a mode or a signal, a table, or a new scope.

The mode of a query and signals choose collections by patterns. A table names the documents that it
lacks. A scope that gains collections is a rule, for there may be many thousands. Offsets in
checkpoints have the names of the three classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from spark_sink.options.java_patterns import matches_any
from spark_sink.options.scope import Scope
from spark_sink.snapshot.plan import filter_of, value_of

Namespace = tuple[str, str]
"""A collection, by database and name."""
# The most characters of keys in a request: beyond them, whole collections are read.
_MAX_KEYS = 100_000


class Selection:
    """The collections that a snapshot reads, and which of their documents.

    A `namespace` is the whole name of a collection, such as "shop.orders".
    """

    def wants(self, namespace: str) -> bool:
        """Return whether the snapshot reads this collection, or documents of it."""
        raise NotImplementedError

    def condition(self, namespace: str) -> Mapping[str, Any] | None:
        """Return the filter on the documents of a collection; None: all are read."""
        return None

    def key_count(self, namespace: str) -> int | None:
        """Return the number of documents, if they are read by their keys; otherwise None."""
        return None

    @property
    def unread(self) -> tuple[Namespace, ...]:
        """The collections that it names, and that a table lacks as a whole."""
        return ()

    @property
    def characters(self) -> int:
        """The characters of the names and filters that a signal has given."""
        return 0


@dataclass(frozen=True)
class DocumentFilter:
    """A filter, as text, for the collections whose whole name a regular expression matches."""

    collections: str
    filter: str

    def matches(self, namespace: str) -> bool:
        """Return whether the filter applies to a collection."""
        return matches_any((self.collections,), namespace)

    @property
    def document(self) -> dict[str, Any]:
        """The filter for `find`."""
        document: dict[str, Any] = value_of(self.filter)
        return document


@dataclass(frozen=True)
class CollectionPatterns(Selection):
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

    def condition(self, namespace: str) -> Mapping[str, Any] | None:
        """Return the first filter that applies to a collection; None: all documents are read."""
        matching = (each.document for each in self.conditions if each.matches(namespace))
        return next(matching, None)

    def without(self, patterns: tuple[str, ...]) -> CollectionPatterns:
        """Return the selection without the collections that match one of these patterns."""
        return replace(self, excluded=(*self.excluded, *patterns))

    @property
    def characters(self) -> int:
        """The characters of the patterns and filters."""
        filters = (text for each in self.conditions for text in (each.collections, each.filter))
        return sum(map(len, (*self.patterns, *self.excluded, *filters)))


EVERYTHING = CollectionPatterns()


@dataclass(frozen=True)
class MissingDocuments(Selection):
    """What a table lacks: collections by name, and keys of documents in others, by namespace."""

    collections: tuple[str, ...] = ()
    documents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def wants(self, namespace: str) -> bool:
        """Return whether the table lacks this collection, or documents of it."""
        return namespace in self.collections or namespace in self.documents

    def condition(self, namespace: str) -> Mapping[str, Any] | None:
        """Return the filter on the keys that the table lacks; None: it lacks all."""
        keys = self.documents.get(namespace)
        return None if keys is None else filter_of(keys)

    def key_count(self, namespace: str) -> int | None:
        """Return how many keys the table lacks; None if it lacks all documents."""
        keys = self.documents.get(namespace)
        return None if keys is None else len(keys)

    @property
    def keys(self) -> list[tuple[str, str]]:
        """The keys of documents, each with its namespace."""
        return [(name, key) for name, keys in self.documents.items() for key in keys]

    def with_more(
        self, collections: Iterable[str], keys: Iterable[tuple[str, str]]
    ) -> MissingDocuments:
        """Return what a table lacks together with further collections and keys, by namespace.

        Whole collections take the place of keys with more than _MAX_KEYS characters in all.
        """
        whole = {*self.collections, *collections}
        by_name = {name: {*keys} for name, keys in self.documents.items()}
        for name, key in keys:
            by_name.setdefault(name, set()).add(key)
        documents = {name: tuple(sorted(by_name[name])) for name in sorted(by_name.keys() - whole)}
        if sum(map(len, chain.from_iterable(documents.values()))) > _MAX_KEYS:
            whole, documents = whole | documents.keys(), {}
        return MissingDocuments(tuple(sorted(whole)), documents)

    @property
    def unread(self) -> tuple[Namespace, ...]:
        """The collections, by database and name."""
        names = (name.partition(".") for name in self.collections)
        return tuple((database, name) for database, _, name in names)


@dataclass(frozen=True)
class ScopeGain(Selection):
    """The collections that a scope gains, as a rule.

    Args:
        id: of the snapshot that reads them.
        token: from which on the stream has their events.
        scope: the scope that has them.
        before: the scope that had not; None if all of `scope` is to be read.
        patterns: of Java, of which one must match the whole name; empty for all names.
        names: those, by database and name, that no pattern matches, or that were dropped before.
    """

    id: str
    token: str
    scope: Scope
    before: Scope | None = None
    patterns: tuple[str, ...] = ()
    names: tuple[Namespace, ...] = ()

    def accepts(self, database: str, collection: str) -> bool:
        """Return whether a collection is one of them."""
        is_named = not self.patterns or (database, collection) in self.names
        is_old = self.before is not None and self.before.accepts(database, collection)
        is_chosen = is_named or matches_any(self.patterns, f"{database}.{collection}")
        return is_chosen and not is_old and self.scope.accepts(database, collection)

    def wants(self, namespace: str) -> bool:
        """Return whether a collection is one of them."""
        database, _, name = namespace.partition(".")
        return self.accepts(database, name)

    @property
    def unread(self) -> tuple[Namespace, ...]:
        """The collections that it names, beside the rule."""
        return self.names

    def __str__(self) -> str:
        return f"collections of {self.scope}" + (f" outside of {self.before}" * bool(self.before))
