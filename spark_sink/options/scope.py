"""The namespaces that a stream watches.

A scope is the whole cluster, a database, one collection, or several collections of a database,
which Debezium's include and exclude lists filter further. An entry of a list is the name of a
database, or of a collection as `database.collection`: a regular expression of Java that matches the
whole name without regard to case, or the name itself with filters.match.mode=literal. The servers
filter the events; `accepts` applies the same rule to the collections of a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_sink.errors import OptionError
from spark_sink.options.java_patterns import compiled, translation

# Events that belong to no collection.
_OTHERS = {"operationType": {"$in": ["dropDatabase", "invalidate"]}}


@dataclass(frozen=True)
class NamespaceLists:
    """The lists; empty ones do not filter. With `literal` the entries are names."""

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
            stages.append({"$match": {"ns.db": self._is_database(self.databases)}})
        if self.not_databases:
            stages.append({"$match": {"ns.db": {"$not": self._is_database(self.not_databases)}}})
        if self.collections:
            chosen = [self._matches(self.collections, name) for name in ("ns", "to")]
            stages.append({"$match": {"$or": [*chosen, _OTHERS]}})
        if self.not_collections:
            kept = {"$nor": [self._matches(self.not_collections, "ns")]}
            # A rename of a collection that is excluded may bring one that is not.
            other = {"$nor": [self._matches(self.not_collections, "to")]}
            into = {"$and": [{"operationType": "rename"}, other]}
            stages.append({"$match": {"$or": [kept, into]}})
        return stages

    def accepts(self, database: str, collection: str) -> bool:
        """Return whether a collection passes the lists."""
        name = f"{database}.{collection}"
        return (
            (not self.databases or self._found(self.databases, database))
            and not self._found(self.not_databases, database)
            and (not self.collections or self._found(self.collections, name))
            and not self._found(self.not_collections, name)
        )

    def __str__(self) -> str:
        named = {
            "databases": self.databases,
            "databases except": self.not_databases,
            "collections": self.collections,
            "collections except": self.not_collections,
        }
        return "; ".join(f"{name} {', '.join(each)}" for name, each in named.items() if each)

    def _is_database(self, entries: tuple[str, ...]) -> dict[str, Any]:
        if self.literal:
            return {"$in": list(entries)}
        return {"$regex": f"(?i){_whole(entries)}"}

    def _found(self, entries: tuple[str, ...], name: str) -> bool:
        if self.literal:
            return name in entries
        return any(compiled(each).fullmatch(name) for each in entries)

    def _matches(self, entries: tuple[str, ...], field: str) -> dict[str, Any]:
        if self.literal:
            pairs = (each.partition(".") for each in entries)
            return {field: {"$in": [{"db": name, "coll": rest} for name, _, rest in pairs]}}
        name = {"$ifNull": [{"$concat": [f"${field}.db", ".", f"${field}.coll"]}, ""]}
        found = {"input": name, "regex": _whole(entries), "options": "i"}
        return {"$expr": {"$regexMatch": found}}


def _whole(patterns: tuple[str, ...]) -> str:
    """Return the pattern of names that one of the patterns matches as a whole."""
    return f"^(?:{'|'.join(f'(?:{translation(each)})' for each in patterns)})$"


@dataclass(frozen=True)
class Scope:
    """The namespaces of a stream.

    Without a database it is the whole cluster, without collections all of the database; `lists`
    filter further.
    """

    database: str | None = None
    collections: tuple[str, ...] = ()
    lists: NamespaceLists = field(default_factory=NamespaceLists)

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The stages before the user's pipeline: filters for several collections.

        One collection needs none, because the server watches it as such; several are watched as
        their database. A rename belongs to its source and to its target.
        """
        stages = self.lists.stages
        if len(self.collections) < 2:
            return stages
        chosen = {"$in": list(self.collections)}
        wanted = {"$match": {"$or": [{"ns.coll": chosen}, {"to.coll": chosen}, _OTHERS]}}
        return [wanted, *stages]

    @property
    def names(self) -> list[str]:
        """The collections (`shop.orders`) and databases that are named, not matched by patterns."""
        if self.database is not None:
            return [f"{self.database}.{name}" for name in self.collections] or [self.database]
        return [*self.lists.databases, *self.lists.collections] if self.lists.literal else []

    def accepts(self, database: str, collection: str) -> bool:
        """Return whether a collection belongs to the scope."""
        within = self.database in (None, database)
        chosen = not self.collections or collection in self.collections
        return within and chosen and self.lists.accepts(database, collection)

    def __str__(self) -> str:
        text = ", ".join(self.names) if self.collections else f"database {self.database!r}"
        if self.database is None:
            text = "the whole cluster"
        return f"{text} ({self.lists})" if self.lists else text


def namespace_options(namespaces: Sequence[str]) -> dict[str, str]:
    """Return the options of the source for collections ("shop.orders") and databases ("shop").

    Raises OptionError if collections and databases are mixed.
    """
    pairs = [name.partition(".")[::2] for name in dict.fromkeys(namespaces)]
    if not pairs:
        return {}
    databases = sorted({database for database, _ in pairs})
    whole = [database for database, collection in pairs if not collection]
    if whole and len(whole) < len(pairs):
        raise OptionError(
            "databases and collections cannot be mixed: name collections only (shop.orders), or "
            "databases only (shop)"
        )
    if len(databases) == 1:
        chosen = {"database": databases[0]}
        if not whole:
            chosen["collection"] = ",".join(collection for _, collection in pairs)
        return chosen
    kind = "database.include.list" if whole else "collection.include.list"
    return {kind: ",".join(dict.fromkeys(namespaces)), "filters.match.mode": "literal"}
