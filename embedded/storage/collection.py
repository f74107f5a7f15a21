"""One collection: its documents, indexes and options."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from bson.binary import Binary

from embedded.errors import duplicate_key
from embedded.storage.bson_values import MISSING, Document, IdKey, id_key, value_at
from embedded.storage.queries import matches

ID_INDEX: Document = {"v": 2, "key": {"_id": 1}, "name": "_id_"}


class DocumentView(Protocol):
    """A read-only view of one collection: the committed state, or a transaction's."""

    def get(self, key: IdKey) -> Document | None:
        """Return the document whose ``id_key`` is ``key``, or None."""

    def documents(self) -> Iterator[Document]:
        """Yield all documents in insertion order; the collection may change in between."""


class Collection:
    """The committed documents of one collection, its indexes and its options.

    ``uuid`` is a BSON UUID. ``options`` are those of ``create``, as ``listCollections`` returns
    them. ``shard_key`` holds the fields of the shard key in order; the cluster sets it, and it is
    empty for an unsharded collection. Returned documents are shared and must not be changed.
    """

    def __init__(
        self, database: str, name: str, uuid: Binary, options: Document | None = None
    ) -> None:
        self.database = database
        self.name = name
        self.uuid = uuid
        self.options: Document = dict(options or {})
        self.shard_key: tuple[str, ...] = ()
        self.indexes: dict[str, Document] = {"_id_": dict(ID_INDEX)}
        self._documents: dict[IdKey, Document] = {}
        self._unique: dict[str, dict[IdKey, IdKey]] = {}

    @property
    def ns(self) -> str:
        """The namespace, ``database.name``."""
        return f"{self.database}.{self.name}"

    @property
    def keeps_images(self) -> bool:
        """Whether pre-images are stored (changeStreamPreAndPostImages)."""
        return bool(self.options.get("changeStreamPreAndPostImages", {}).get("enabled"))

    @property
    def has_unique_indexes(self) -> bool:
        """Whether there is a unique index besides that on ``_id``."""
        return bool(self._unique)

    def __len__(self) -> int:
        return len(self._documents)

    def get(self, key: IdKey) -> Document | None:
        """Return the committed document whose ``id_key`` is ``key``, or None."""
        return self._documents.get(key)

    def documents(self) -> Iterator[Document]:
        """Return an iterator over the current documents, in insertion order."""
        return iter(list(self._documents.values()))

    def document_key(self, document: Document) -> Document:
        """Return the document key: the shard key's fields, without absent ones, then ``_id``."""
        key: Document = {}
        for field in self.shard_key:
            value = value_at(document, field)
            if value is not MISSING:
                key[field] = value
        if "_id" not in key:
            key["_id"] = document["_id"]
        return key

    def put(self, document: Document) -> None:
        """Store ``document`` under its ``_id`` and update the unique indexes."""
        key = id_key(document["_id"])
        if self._unique:
            self._unindex(key)
            for name, entries in self._unique.items():
                for value in self._index_values(name, document):
                    entries[value] = key
        self._documents[key] = document

    def remove(self, key: IdKey) -> None:
        """Remove the document with this key, if it exists."""
        if self._unique:
            self._unindex(key)
        self._documents.pop(key, None)

    def _unindex(self, key: IdKey) -> None:
        before = self._documents.get(key)
        if before is None:
            return
        for name, entries in self._unique.items():
            for value in self._index_values(name, before):
                entries.pop(value, None)

    def check_unique(
        self, document: Document, *, ignore: Iterable[IdKey] = (), inserting: bool
    ) -> None:
        """Check that ``document`` violates no unique index; ``inserting`` includes that on ``_id``.

        ``ignore`` are keys of documents that the writer has already removed or changed.

        Raises:
            CommandError: 11000 DuplicateKey.
        """
        key = id_key(document["_id"])
        ignored = set(ignore)
        if inserting and key in self._documents and key not in ignored:
            self.refuse_duplicate_id(document)
        for name, entries in self._unique.items():
            for value in self._index_values(name, document):
                holder = entries.get(value, MISSING)
                if holder is not MISSING and holder != key and holder not in ignored:
                    raise self._duplicate(name, document)

    def refuse_duplicate_id(self, document: Document) -> None:
        """Raise DuplicateKey for ``_id``."""
        raise duplicate_key(self.ns, "_id_", {"_id": 1}, {"_id": document["_id"]})

    def refuse_clash(self, left: Document, right: Document) -> None:
        """Raise DuplicateKey if two documents with different ``_id`` share a unique key."""
        name = self.clash(left, right)
        if name is not None:
            raise self._duplicate(name, right)

    def clash(self, left: Document, right: Document) -> str | None:
        """Return the name of a unique index in which two documents share a key, or None."""
        for name in self._unique:
            if set(self._index_values(name, left)) & set(self._index_values(name, right)):
                return name
        return None

    def _duplicate(self, name: str, document: Document) -> Exception:
        pattern = self.indexes[name]["key"]
        values = {field: value_at(document, field) for field in pattern}
        shown = {field: None if v is MISSING else v for field, v in values.items()}
        return duplicate_key(self.ns, name, pattern, shown)

    def add_index(self, specification: Document) -> None:
        """Add an index; build a unique index from the documents.

        Raises:
            CommandError: 11000 DuplicateKey if two documents share a unique key.
        """
        name = specification["name"]
        self.indexes[name] = specification
        if not specification.get("unique"):
            return
        entries: dict[IdKey, IdKey] = {}
        for key, document in self._documents.items():
            for value in self._index_values(name, document):
                if entries.setdefault(value, key) != key:
                    del self.indexes[name]
                    raise duplicate_key(
                        self.ns,
                        name,
                        specification["key"],
                        {f: value_at(document, f) or None for f in specification["key"]},
                    )
        self._unique[name] = entries

    def drop_index(self, name: str) -> Document:
        """Remove an index and return its specification.

        Raises:
            KeyError: there is no such index.
        """
        self._unique.pop(name, None)
        return self.indexes.pop(name)

    def _index_values(self, name: str, document: Document) -> list[IdKey]:
        specification = self.indexes[name]
        fields = list(specification["key"])
        values = [value_at(document, field) for field in fields]
        if specification.get("sparse") and all(value is MISSING for value in values):
            return []
        partial = specification.get("partialFilterExpression")
        if partial is not None and not matches(partial, document):
            return []
        if len(values) == 1 and isinstance(values[0], list) and values[0]:
            return [("multikey", id_key(item)) for item in values[0]]
        return [tuple(None if v is MISSING else id_key(v) for v in values)]

    def info(self) -> dict[str, Any]:
        """Return the collection's entry in ``listCollections``."""
        return {
            "name": self.name,
            "type": "collection",
            "options": dict(self.options),
            "info": {"readOnly": False, "uuid": self.uuid},
            "idIndex": dict(ID_INDEX),
        }
