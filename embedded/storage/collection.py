"""One collection: its documents, indexes and options."""

from collections.abc import Iterator
from typing import Any, Protocol

from bson.binary import Binary

from embedded.storage.bson_values import MISSING, Document, IdKey, id_key, value_at

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

    @property
    def ns(self) -> str:
        """The namespace, ``database.name``."""
        return f"{self.database}.{self.name}"

    @property
    def keeps_images(self) -> bool:
        """Whether pre-images are stored (changeStreamPreAndPostImages)."""
        return bool(self.options.get("changeStreamPreAndPostImages", {}).get("enabled"))

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
        """Store ``document`` under its ``_id``."""
        self._documents[id_key(document["_id"])] = document

    def remove(self, key: IdKey) -> None:
        """Remove the document with this key, if it exists."""
        self._documents.pop(key, None)

    def info(self) -> dict[str, Any]:
        """Return the collection's entry in ``listCollections``."""
        return {
            "name": self.name,
            "type": "collection",
            "options": dict(self.options),
            "info": {"readOnly": False, "uuid": self.uuid},
            "idIndex": dict(ID_INDEX),
        }
