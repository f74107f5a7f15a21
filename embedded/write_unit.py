"""Writes as oplog operations, applied immediately or collected by a transaction."""

from typing import Any, Protocol

from embedded.storage.bson_values import Document, IdKey
from embedded.storage.collection import Collection, DocumentView


class WriteUnit(Protocol):
    """The target of a write command: the committed state, or a transaction."""

    def view(self, collection: Collection) -> DocumentView:
        """Return the documents that reads in this unit see."""

    def insert(self, collection: Collection, document: Document, statement: int) -> None:
        """Insert a document; ``statement`` is the statement's number within its command."""

    def insert_together(self, collection: Collection, documents: list[Document]) -> bool:
        """Insert several documents with one oplog entry; return False if it is not possible."""

    def update(
        self, collection: Collection, before: Document, after: Document, o: Document, statement: int
    ) -> None:
        """Replace ``before`` with ``after``; ``o`` is the change in the oplog entry."""

    def delete(self, collection: Collection, before: Document, statement: int) -> None:
        """Delete a document; ``before`` is its current state."""


class Operation:
    """The change of one document, with its oplog entry.

    ``key`` is the document's key in the collection. ``before`` and ``after`` are its states; None
    means that it does not exist.
    """

    __slots__ = ("after", "before", "collection", "entry", "key")

    def __init__(
        self,
        collection: Collection,
        key: IdKey,
        before: Document | None,
        after: Document | None,
        entry: dict[str, Any],
    ) -> None:
        self.collection = collection
        self.key = key
        self.before = before
        self.after = after
        self.entry = entry

    def apply(self) -> None:
        """Apply the change to the collection."""
        if self.after is None:
            self.collection.remove(self.key)
        else:
            self.collection.put(self.after)


def insert_entry(collection: Collection, document: Document) -> dict[str, Any]:
    """Return the ``i`` entry's fields, without time and session."""
    return {
        "op": "i",
        "ns": f"{collection.database}.{collection.name}",
        "ui": collection.uuid,
        "o": document,
        "o2": collection.document_key(document),
    }


def update_entry(collection: Collection, before: Document, o: Document) -> dict[str, Any]:
    """Return the ``u`` entry's fields, without time and session."""
    return {
        "op": "u",
        "ns": f"{collection.database}.{collection.name}",
        "ui": collection.uuid,
        "o": o,
        "o2": collection.document_key(before),
    }


def delete_entry(collection: Collection, before: Document) -> dict[str, Any]:
    """Return the ``d`` entry's fields, without time and session."""
    return {
        "op": "d",
        "ns": f"{collection.database}.{collection.name}",
        "ui": collection.uuid,
        "o": collection.document_key(before),
    }
