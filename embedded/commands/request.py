"""A command with its context in an embedded mongod, and the registry of commands."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from embedded.client import Client
from embedded.errors import CommandError, ErrorCode, type_mismatch
from embedded.journal import CommittedWrites
from embedded.member import Member
from embedded.sessions import Session
from embedded.storage.bson_values import Document
from embedded.storage.collection import Collection
from embedded.transactions import Transaction
from embedded.write_unit import WriteUnit
from shard_client.bson.values import type_name


@dataclass(slots=True, eq=False)
class Request:
    """One command with its context.

    ``session`` is set if the command has an ``lsid``, ``transaction`` if it is part of one.
    ``is_retryable`` means that it has a ``txnNumber`` outside of a transaction.
    """

    mongod: Member
    database: str
    name: str
    command: Document
    client: Client
    session: Session | None = None
    transaction: Transaction | None = None
    is_retryable: bool = False

    @property
    def target(self) -> str:
        """The collection's name, the command's first value.

        Raises:
            CommandError: 73 InvalidNamespace if the value is not a valid name.
        """
        return checked_collection(self.database, self.command[self.name])

    @property
    def ns(self) -> str:
        """The namespace of the command, ``database.collection``."""
        return f"{self.database}.{self.target}"

    @property
    def collection(self) -> Collection | None:
        """The command's collection, None if it does not exist."""
        return self.mongod.catalog.get(self.ns)

    @property
    def unit(self) -> WriteUnit:
        """The unit that this command reads from and writes to."""
        if self.transaction is not None:
            return self.transaction
        return CommittedWrites(
            self.mongod.journal, self.session_fields, from_migrate=self.client.from_migrate
        )

    @property
    def session_fields(self) -> Document:
        """The fields of a retryable write's oplog entries; no fields if it is none."""
        if not self.is_retryable or self.session is None:
            return {}
        return {"lsid": self.session.lsid, "txnNumber": self.session.txn_number}

    def field(self, name: str, kinds: type | tuple[type, ...], default: Any) -> Any:
        """Return an argument, or ``default`` if it is absent or null; raises as ``argument``."""
        value = argument(self.command, name, kinds)
        return default if value is None else value


Handler = Callable[[Request], Awaitable[Document]]

COMMANDS: dict[str, Handler] = {}
"""The handlers of the commands, by name."""

IN_TRANSACTIONS: set[str] = set()
"""The commands that transactions permit."""


def command(*names: str, in_transactions: bool = False) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of the commands ``names``."""

    def register(handler: Handler) -> Handler:
        for name in names:
            COMMANDS[name] = handler
            if in_transactions:
                IN_TRANSACTIONS.add(name)
        return handler

    return register


def argument(command: Document, name: str, kinds: type | tuple[type, ...]) -> Any:
    """Return an argument of a command, None if it is absent or null.

    Raises:
        CommandError: 14 TypeMismatch if it is not of one of ``kinds``, or a stage of a pipeline is
            no document.
    """
    value = command.get(name)
    if value is not None and not isinstance(value, kinds):
        path = f"{next(iter(command))}.{name}"
        raise type_mismatch(f"BSON field '{path}' is the wrong type '{type_name(value)}'")
    stages = value if name == "pipeline" and isinstance(value, list) else []
    if not all(isinstance(stage, dict) for stage in stages):
        raise type_mismatch("Each element of the 'pipeline' array must be an object")
    return value


def checked_collection(database: str, name: Any) -> str:
    """Return ``name``, the first value of a command on a collection.

    Raises:
        CommandError: 73 InvalidNamespace if it is not a valid name.
    """
    if not isinstance(name, str):
        raise CommandError(
            ErrorCode.InvalidNamespace, f"collection name has invalid type {type_name(name)}"
        )
    if not name or "\0" in name or name.startswith("."):
        raise CommandError(
            ErrorCode.InvalidNamespace, f"Invalid namespace specified '{database}.{name}'"
        )
    return name
