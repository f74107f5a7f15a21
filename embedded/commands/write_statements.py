"""Common parts of the write commands: retries, waiting for locks, validators, write errors."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from embedded.commands.request import Request
from embedded.errors import CommandError, ErrorCode, bad_value
from embedded.storage.bson_values import Document
from embedded.storage.collection import Collection
from embedded.transactions import DocumentLocked

T = TypeVar("T")


async def when_unlocked(attempt: Callable[[], T]) -> T:
    """Return the result of ``attempt``, repeating it each time a transaction's lock blocks it."""
    while True:
        try:
            return attempt()
        except DocumentLocked as locked:
            await locked.transaction.wait_ended()


async def take_turns(done: int) -> None:
    """Let other tasks run after every 256 documents; ``done`` counts the documents so far."""
    if done % 256 == 255:
        await asyncio.sleep(0)


def writable_collection(request: Request) -> Collection:
    """Return the collection to write to, creating it if it does not exist.

    Raises:
        CommandError: the namespace is a view, or the database is ``local``.
    """
    mongod = request.mongod
    collection = mongod.catalog.get(request.ns)
    if collection is not None:
        return collection
    if mongod.catalog.view(request.ns) is not None:
        raise CommandError(
            ErrorCode.CommandNotSupportedOnView,
            f"Namespace {request.ns} is a view, not a collection",
        )
    if request.database == "local":
        raise bad_value("the local database of an embedded server is read-only")
    return mongod.create_collection(
        request.database, request.target, from_migrate=request.client.from_migrate
    )


class Statements:
    """The statements of one write command: their numbers, outcomes and errors.

    A retried command skips the statements that succeeded before; the session keeps their outcomes.
    """

    def __init__(self, request: Request, count: int) -> None:
        self._request = request
        statement_ids = request.command.get("stmtIds")
        first = int(request.command.get("stmtId", 0))
        self.ids = list(statement_ids) if statement_ids else list(range(first, first + count))
        self._remembered = (
            request.session.statements if request.is_retryable and request.session else {}
        )
        self.is_ordered = bool(request.command.get("ordered", True))
        self.retried: list[int] = []
        self.errors: list[Document] = []

    @property
    def begun(self) -> bool:
        """Whether one of them succeeded before."""
        return any(identifier in self._remembered for identifier in self.ids)

    def repeated(self, index: int) -> Any:
        """Return the outcome of statement ``index`` if it succeeded before, else None."""
        outcome = self._remembered.get(self.ids[index])
        if outcome is not None:
            self.retried.append(self.ids[index])
        return outcome

    def made(self, index: int, outcome: Any) -> None:
        """Store the outcome of statement ``index`` for a retry."""
        if self._request.is_retryable:
            self._remembered[self.ids[index]] = outcome

    def failed(self, index: int, error: CommandError) -> bool:
        """Record a write error; return whether it ends the command.

        Raises:
            CommandError: ``error`` itself if it is a write conflict, which fails the whole command.
        """
        if error.code == ErrorCode.WriteConflict:
            raise error
        entry: Document = {"index": index, "code": error.code}
        entry |= error.extra
        entry["errmsg"] = error.message
        self.errors.append(entry)
        transaction = self._request.transaction
        if transaction is not None:
            self._request.mongod.journal.abort(transaction)
            return True
        return self.is_ordered

    def reply(self, fields: Document) -> Document:
        """Return the command's reply: ``fields``, write errors, retried statements."""
        reply = dict(fields)
        if self.errors:
            reply["writeErrors"] = self.errors
        if self.retried:
            reply["retriedStmtIds"] = self.retried
        return reply
