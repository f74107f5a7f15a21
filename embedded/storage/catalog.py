"""The databases, collections and views of a member."""

from collections.abc import Callable

from bson.binary import Binary

from embedded.errors import namespace_exists, namespace_not_found
from embedded.storage.bson_values import Document
from embedded.storage.collection import Collection

VIEWS = "system.views"
"""The collection of a database's views; their ``_id`` is their namespace."""


class Catalog:
    """Collections by namespace and by UUID; views are documents of ``system.views``.

    ``new_uuid`` makes a collection's UUID. The catalog does not write to the oplog.
    """

    def __init__(self, new_uuid: Callable[[], Binary]) -> None:
        self._new_uuid = new_uuid
        self._by_ns: dict[str, Collection] = {}
        self._by_uuid: dict[bytes, Collection] = {}

    def get(self, ns: str) -> Collection | None:
        """Return the collection ``ns``, or None."""
        return self._by_ns.get(ns)

    def require(self, ns: str) -> Collection:
        """Return the collection ``ns``.

        Raises:
            CommandError: 26 NamespaceNotFound.
        """
        collection = self._by_ns.get(ns)
        if collection is None:
            raise namespace_not_found(f"ns does not exist: {ns}")
        return collection

    def by_uuid(self, uuid: bytes) -> Collection | None:
        """Return the collection with this UUID, or None."""
        return self._by_uuid.get(bytes(uuid))

    def view(self, ns: str) -> Document | None:
        """Return the view ``ns``, ``{_id, viewOn, pipeline}``, or None."""
        stored = self._by_ns.get(f"{ns.partition('.')[0]}.{VIEWS}")
        return None if stored is None else stored.get(ns)

    def collections(self, database: str) -> list[Collection]:
        """Return the collections of a database, sorted by name."""
        collections = [c for c in self._by_ns.values() if c.database == database]
        return sorted(collections, key=lambda c: c.name)

    def databases(self) -> list[str]:
        """Return the names of all databases that have a collection."""
        return sorted({c.database for c in self._by_ns.values()})

    def create(
        self, database: str, name: str, options: Document | None = None, uuid: Binary | None = None
    ) -> Collection:
        """Add a collection.

        Raises:
            CommandError: 48 NamespaceExists.
        """
        ns = f"{database}.{name}"
        if ns in self._by_ns:
            raise namespace_exists(ns)
        collection = Collection(database, name, uuid or self._new_uuid(), options)
        self._by_ns[ns] = collection
        self._by_uuid[bytes(collection.uuid)] = collection
        return collection

    def drop(self, collection: Collection) -> None:
        """Remove a collection."""
        del self._by_ns[collection.ns]
        del self._by_uuid[bytes(collection.uuid)]

    def rename(self, collection: Collection, database: str, name: str) -> None:
        """Rename a collection; its UUID stays."""
        del self._by_ns[collection.ns]
        collection.database, collection.name = database, name
        self._by_ns[collection.ns] = collection
