"""Changes of documents as oplog operations, and the units that they are written to."""

from typing import Any, Protocol

from embedded.errors import duplicate_key
from embedded.storage.bson_values import Document, id_key
from embedded.storage.collection import Collection, DocumentView


class Operation:
    """The change of one document, with its oplog entry.

    ``before`` and ``after`` are its states; None means that it does not exist. ``key`` is its key
    in the collection. ``entry`` has the entry's fields without time and session; ``o`` is an
    update's change there.
    """

    __slots__ = ("after", "before", "collection", "entry", "key")

    def __init__(
        self,
        collection: Collection,
        before: Document | None,
        after: Document | None,
        o: Document | None = None,
    ) -> None:
        present: Any = after if before is None else before
        self.collection = collection
        self.before = before
        self.after = after
        self.key = id_key(present["_id"])
        self.entry: dict[str, Any] = {"op": "u", "ns": collection.ns, "ui": collection.uuid}
        document_key = collection.document_key(present)
        if before is None:
            self.entry |= {"op": "i", "o": after, "o2": document_key}
        elif after is None:
            self.entry |= {"op": "d", "o": document_key}
        else:
            self.entry |= {"o": o, "o2": document_key}

    def check_insert(self, view: DocumentView) -> None:
        """Raise CommandError 11000 DuplicateKey for an insert of a document that the view has."""
        if self.before is None and view.get(self.key) is not None:
            raise duplicate_key(self.collection.ns, self.entry["o"]["_id"])

    def apply(self) -> None:
        """Apply the change to the collection."""
        if self.after is None:
            self.collection.remove(self.key)
        else:
            self.collection.put(self.after)


class WriteUnit(Protocol):
    """The target of a write command: the committed state, or a transaction."""

    def view(self, collection: Collection) -> DocumentView:
        """Return the documents that reads in this unit see."""

    def write(self, operation: Operation, statement: int = 0) -> None:
        """Make a change; ``statement`` is the statement's number within its command.

        Raises:
            CommandError: 11000 DuplicateKey; in a transaction 112 WriteConflict.
            DocumentLocked: outside of transactions, if one has written the document.
        """
