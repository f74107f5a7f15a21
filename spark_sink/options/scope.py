"""The namespaces that a stream watches.

A scope is the whole cluster, a database, one collection, or several collections of a database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_sink.options.namespace_lists import NamespaceLists


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
        others = {"operationType": {"$in": ["dropDatabase", "invalidate"]}}
        wanted = {"$match": {"$or": [{"ns.coll": chosen}, {"to.coll": chosen}, others]}}
        return [wanted, *stages]

    def accepts(self, database: str, collection: str) -> bool:
        """Return whether a collection belongs to the scope."""
        within = self.database in (None, database)
        chosen = not self.collections or collection in self.collections
        return within and chosen and self.lists.accepts(database, collection)

    def __str__(self) -> str:
        return f"{self._place()} ({self.lists})" if self.lists else self._place()

    def _place(self) -> str:
        if self.database is None:
            return "the whole cluster"
        if not self.collections:
            return f"database {self.database!r}"
        return ", ".join(f"{self.database}.{name}" for name in self.collections)
