"""The namespaces that a stream watches.

A scope is the whole cluster, a database, one collection, or several collections of a database,
which Debezium's include and exclude lists filter further. An entry of a list is the name of a
database, or of a collection as `database.collection`: a regular expression of Java that matches the
whole name without regard to case, or the name itself with filters.match.mode=literal. The servers
filter the events; `accepts` applies the same rule to the collections of a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_sink.errors import OptionError
from spark_sink.options.java_patterns import compiled, translation

# Events that belong to no collection.
_OTHERS = {"operationType": {"$in": ["dropDatabase", "invalidate"]}}


@dataclass(frozen=True)
class Scope:
    """The namespaces of a stream.

    Args:
        database: None for the whole cluster.
        collections: their names; empty for all of the database.
        include_databases, exclude_databases, include_collections, exclude_collections: Debezium's
            lists, which filter further; empty ones do not filter.
        literal: whether the entries of the lists are names.
    """

    database: str | None = None
    collections: tuple[str, ...] = ()
    include_databases: tuple[str, ...] = ()
    exclude_databases: tuple[str, ...] = ()
    include_collections: tuple[str, ...] = ()
    exclude_collections: tuple[str, ...] = ()
    literal: bool = False

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The stages before the user's pipeline.

        One collection needs none, because the server watches it as such; several are watched as
        their database. A rename belongs to its source and to its target.
        """
        wanted: list[dict[str, Any]] = []
        if len(self.collections) > 1:
            chosen = {"$in": list(self.collections)}
            wanted.append({"$or": [{"ns.coll": chosen}, {"to.coll": chosen}, _OTHERS]})
        if self.include_databases:
            wanted.append({"ns.db": self._is_database(self.include_databases)})
        if self.exclude_databases:
            wanted.append({"ns.db": {"$not": self._is_database(self.exclude_databases)}})
        if self.include_collections:
            included = [self._matches(self.include_collections, name) for name in ("ns", "to")]
            wanted.append({"$or": [*included, _OTHERS]})
        if self.exclude_collections:
            kept = {"$nor": [self._matches(self.exclude_collections, "ns")]}
            # A rename of a collection that is excluded may bring one that is not.
            other = {"$nor": [self._matches(self.exclude_collections, "to")]}
            wanted.append({"$or": [kept, {"$and": [{"operationType": "rename"}, other]}]})
        return [{"$match": condition} for condition in wanted]

    def accepts(self, database: str, collection: str) -> bool:
        """Return whether a collection belongs to the scope."""
        name = f"{database}.{collection}"
        return (
            self.database in (None, database)
            and (not self.collections or collection in self.collections)
            and (not self.include_databases or self._found(self.include_databases, database))
            and not self._found(self.exclude_databases, database)
            and (not self.include_collections or self._found(self.include_collections, name))
            and not self._found(self.exclude_collections, name)
        )

    def __str__(self) -> str:
        text = ", ".join(f"{self.database}.{name}" for name in self.collections)
        text = text or f"database {self.database!r}"
        if self.database is None:
            text = "the whole cluster"
        lists = {
            "databases": self.include_databases,
            "databases except": self.exclude_databases,
            "collections": self.include_collections,
            "collections except": self.exclude_collections,
        }
        named = "; ".join(
            f"{name} {', '.join(entries)}" for name, entries in lists.items() if entries
        )
        return f"{text} ({named})" if named else text

    def _is_database(self, entries: tuple[str, ...]) -> dict[str, Any]:
        if self.literal:
            return {"$in": list(entries)}
        return {"$regex": f"(?i){_whole(entries)}"}

    def _found(self, entries: tuple[str, ...], name: str) -> bool:
        if self.literal:
            return name in entries
        return any(compiled(entry).fullmatch(name) for entry in entries)

    def _matches(self, entries: tuple[str, ...], field: str) -> dict[str, Any]:
        if self.literal:
            pairs = (entry.partition(".") for entry in entries)
            return {field: {"$in": [{"db": name, "coll": rest} for name, _, rest in pairs]}}
        name = {"$ifNull": [{"$concat": [f"${field}.db", ".", f"${field}.coll"]}, ""]}
        condition = {"input": name, "regex": _whole(entries), "options": "i"}
        return {"$expr": {"$regexMatch": condition}}


def _whole(patterns: tuple[str, ...]) -> str:
    """Return the pattern of whole names, line feeds included, that one of the patterns matches."""
    return f"^(?:{'|'.join(f'(?:{translation(pattern)})' for pattern in patterns)})$(?!\\n)"


def namespace_options(namespaces: Sequence[str]) -> dict[str, str]:
    """Return the options of the source for collections ("shop.orders") and databases ("shop").

    Raises OptionError if collections and databases are mixed, or a name in a list has a comma.
    """
    if odd := [name for name in namespaces if "," in name and ("." in name or len(namespaces) > 1)]:
        raise OptionError(
            f"{odd[0]!r} has a comma: name each by itself; a name with a comma matches a pattern "
            "of an option such as collection.include.list, in which \\, is a comma"
        )
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
