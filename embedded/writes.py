"""Writes as oplog operations: made at once, or gathered by a transaction."""

from typing import Any, Protocol

from embedded.storage.bson_values import Document, IdKey
from embedded.storage.collection import Collection, DocumentView


class WriteUnit(Protocol):
    """What a write command writes to: the committed state, or a transaction."""

    def view(self, collection: Collection) -> DocumentView:
        """Return what reads of this unit see."""

    def insert(self, collection: Collection, document: Document, statement: int) -> None:
        """Insert; ``statement`` is the statement's number within its command."""

    def update(
        self, collection: Collection, before: Document, after: Document, o: Document, statement: int
    ) -> None:
        """Put ``after`` in the place of ``before``; ``o`` goes to the oplog entry."""

    def delete(self, collection: Collection, before: Document, statement: int) -> None:
        """Delete."""


class Operation:
    """One document's change: its part of an oplog entry, and how to make it.

    ``key`` is the document's key in the collection; ``before`` and ``after`` its states (None:
    not there).
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
        """Make the change in the collection."""
        if self.after is None:
            self.collection.remove(self.key)
        else:
            self.collection.put(self.after)


def insert_entry(collection: Collection, document: Document) -> dict[str, Any]:
    """Return the ``i`` entry's fields, without time and session."""
    return {
        "op": "i",
        "ns": f"{collection.database}.{collection.logged_name}",
        "ui": collection.uuid,
        "o": document,
        "o2": collection.document_key(document),
    }


def update_entry(collection: Collection, before: Document, o: Document) -> dict[str, Any]:
    """Return the ``u`` entry's fields, without time and session.

    ``o2`` is the document key before the update, also where it changes the shard key, as on 6.0.
    """
    return {
        "op": "u",
        "ns": f"{collection.database}.{collection.logged_name}",
        "ui": collection.uuid,
        "o": o,
        "o2": collection.document_key(before),
    }


def delete_entry(collection: Collection, before: Document) -> dict[str, Any]:
    """Return the ``d`` entry's fields, without time and session."""
    return {
        "op": "d",
        "ns": f"{collection.database}.{collection.logged_name}",
        "ui": collection.uuid,
        "o": collection.document_key(before),
    }
