"""Debezium's include and exclude lists: which databases and collections a stream has.

An entry is the name of a database, or of a collection as `database.collection`: a regular
expression that matches the whole name, or with filters.match.mode=literal the name itself. Case
counts, as it does in MongoDB's names. The servers filter the events; `accepts` says the same about
a collection of a snapshot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# Events that belong to no collection.
_OTHERS = {"operationType": {"$in": ["dropDatabase", "invalidate"]}}


@dataclass(frozen=True)
class NamespaceLists:
    """The lists; empty ones say nothing. literal: entries are names, not regular expressions."""

    databases: tuple[str, ...] = ()
    not_databases: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    not_collections: tuple[str, ...] = ()
    literal: bool = False

    def __bool__(self) -> bool:
        return any((self.databases, self.not_databases, self.collections, self.not_collections))

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The lists as stages of a change stream's pipeline."""
        stages: list[dict[str, Any]] = []
        if self.databases:
            stages.append({"$match": {"ns.db": {"$regex": self._pattern(self.databases)}}})
        if self.not_databases:
            refused = {"$not": {"$regex": self._pattern(self.not_databases)}}
            stages.append({"$match": {"ns.db": refused}})
        if self.collections:
            chosen = [self._matches(self.collections, name) for name in ("ns", "to")]
            stages.append({"$match": {"$or": [*chosen, _OTHERS]}})
        if self.not_collections:
            stages.append({"$match": {"$nor": [self._matches(self.not_collections, "ns")]}})
        return stages

    def accepts(self, database: str, collection: str) -> bool:
        """Whether the lists let a collection pass."""
        name = f"{database}.{collection}"
        return (
            (not self.databases or self._found(self.databases, database))
            and not self._found(self.not_databases, database)
            and (not self.collections or self._found(self.collections, name))
            and not self._found(self.not_collections, name)
        )

    def to_document(self) -> dict[str, Any]:
        """The lists as part of an offset."""
        found: dict[str, Any] = {
            "databases": list(self.databases),
            "notDatabases": list(self.not_databases),
            "collections": list(self.collections),
            "notCollections": list(self.not_collections),
        }
        return {"literal": self.literal, **{name: each for name, each in found.items() if each}}

    def __str__(self) -> str:
        named = {
            "databases": self.databases,
            "databases except": self.not_databases,
            "collections": self.collections,
            "collections except": self.not_collections,
        }
        return "; ".join(f"{name} {', '.join(each)}" for name, each in named.items() if each)

    def _pattern(self, entries: tuple[str, ...]) -> str:
        return f"^(?:{'|'.join(self._expressions(entries))})$"

    def _expressions(self, entries: tuple[str, ...]) -> list[str]:
        return [re.escape(each) for each in entries] if self.literal else list(entries)

    def _found(self, entries: tuple[str, ...], name: str) -> bool:
        return any(re.fullmatch(each, name) for each in self._expressions(entries))

    def _matches(self, entries: tuple[str, ...], field: str) -> dict[str, Any]:
        name = {"$ifNull": [{"$concat": [f"${field}.db", ".", f"${field}.coll"]}, ""]}
        return {"$expr": {"$regexMatch": {"input": name, "regex": self._pattern(entries)}}}


def lists_from(document: dict[str, Any] | None) -> NamespaceLists:
    """The lists that `to_document` wrote."""
    if document is None:
        return NamespaceLists()
    return NamespaceLists(
        tuple(document.get("databases", ())),
        tuple(document.get("notDatabases", ())),
        tuple(document.get("collections", ())),
        tuple(document.get("notCollections", ())),
        document["literal"],
    )
