"""One client command with its context in the embedded mongos."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bson import ObjectId

from embedded.access.control import AccessControl
from embedded.client import Client
from embedded.commands.request import argument, checked_collection
from embedded.cursors import CursorTable
from embedded.errors import CommandError, ErrorCode, no_such_transaction
from embedded.mongos.catalog import ClusterCatalog, ShardedCollection
from embedded.mongos.cluster_transactions import ClusterTransaction, TransactionTable
from embedded.mongos.namespace_locks import NamespaceLocks
from embedded.mongos.shards import Servers, Shard, execute_on_all
from embedded.storage.bson_values import Document

Value = TypeVar("Value")

_SESSION_FIELDS = frozenset({"lsid", "txnNumber", "autocommit", "startTransaction", "readConcern"})
_PASSED_ON = ("writeConcern", "maxTimeMS", "comment", "bypassDocumentValidation", "let")


@dataclass(frozen=True)
class ClusterState:
    """The state that all requests share."""

    catalog: ClusterCatalog
    servers: Servers
    locks: NamespaceLocks
    transactions: TransactionTable
    cursors: CursorTable
    process_id: ObjectId
    access: AccessControl


@dataclass(frozen=True)
class Placement:
    """The location of a namespace: sharded, or on its database's primary shard."""

    primary: Shard
    sharded: ShardedCollection | None


@dataclass
class RoutedRequest:
    """A command, its session, and the shards that it was sent to.

    Args:
        state: the cluster.
        database: the database of the command.
        command: the command; its first key is the name.
        client: the sender.
        transaction: the transaction of the command, if any.
        touched: the shards that the command was sent to.
    """

    state: ClusterState
    database: str
    command: Document
    client: Client
    transaction: ClusterTransaction | None = None
    touched: dict[Shard, None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The command's name as sent."""
        return next(iter(self.command))

    @property
    def catalog(self) -> ClusterCatalog:
        """The cluster's metadata."""
        return self.state.catalog

    @property
    def collection(self) -> str:
        """The command's collection.

        Raises:
            CommandError: 73 InvalidNamespace if the command's first value is not a valid name.
        """
        return checked_collection(self.database, self.command[self.name])

    @property
    def namespace(self) -> str:
        """The command's namespace, ``database.collection``."""
        return f"{self.database}.{self.collection}"

    @property
    def retryable(self) -> bool:
        """Whether the command is a retryable write."""
        return "txnNumber" in self.command and self.transaction is None

    def field(self, name: str, kind: type[Value], default: Value | None = None) -> Value:
        """Return an argument of the command.

        Args:
            name: the argument.
            kind: its type.
            default: the value of an absent or null argument; without a default it is required.

        Raises:
            CommandError: 14 TypeMismatch for another type; 40414 if a required argument is missing.
        """
        value: Value | None = argument(self.command, name, kind)
        value = default if value is None else value
        if value is None:
            raise CommandError(
                ErrorCode.IDLFailedToParse,
                f"BSON field '{self.name}.{name}' is missing but a required field",
            )  # fmt: skip
        return value

    def as_sent(self, without: Iterable[str] = ()) -> Document:
        """Return the client's command without session fields and ``$`` fields."""
        left_out = _SESSION_FIELDS | set(without)
        return {
            name: value
            for name, value in self.command.items()
            if name not in left_out and not name.startswith("$")
        }

    @asynccontextmanager
    async def placement(self) -> AsyncIterator[Placement | None]:
        """Hold shared locks on the namespace and its database, and yield its location.

        Yields ``None`` if the database does not exist. The location does not change during the
        block, in a transaction until that ends.

        Raises:
            CommandError: 24 LockTimeout.
        """
        namespace = self.namespace
        if self.transaction is not None:
            await self.state.transactions.hold(self.transaction, namespace)
            yield self.placement_now(namespace)
        else:
            async with self.state.locks.shared(namespace):
                yield self.placement_now(namespace)

    @asynccontextmanager
    async def placement_for_write(self) -> AsyncIterator[Placement]:
        """Do as ``placement``, but create the database if necessary.

        Raises:
            CommandError: 24 LockTimeout; 70 if the cluster has no shard.
        """
        async with self.placement() as found:
            yield found or Placement(await self.catalog.create_database(self.database), None)

    def placement_now(self, namespace: str) -> Placement | None:
        """Return the location of a namespace that the caller has locked.

        Returns None if its database does not exist.
        """
        primary = self.catalog.primary_of(namespace.partition(".")[0])
        if primary is None:
            return None
        return Placement(primary, self.catalog.collections.get(namespace))

    async def send(
        self, shard: Shard, command: Mapping[str, Any], *, write: bool = False
    ) -> Document:
        """Run ``command`` on one shard, in this request's session.

        Args:
            shard: the shard.
            command: the command.
            write: whether the command may change data.

        Raises:
            CommandError: the shard's error.
        """
        self.touched[shard] = None
        return await shard.execute(self.database, self._in_session(shard, command, write))

    async def send_all(
        self, commands: Mapping[Shard, Mapping[str, Any]], *, write: bool = False
    ) -> dict[Shard, Document]:
        """Run commands on several shards in parallel, in this request's session.

        Returns each shard's reply.

        Raises:
            CommandError: the error of the first shard that has one.
        """
        self.touched.update(dict.fromkeys(commands))
        prepared = {
            shard: self._in_session(shard, command, write) for shard, command in commands.items()
        }
        return await execute_on_all(prepared, self.database)

    def _in_session(self, shard: Shard, command: Mapping[str, Any], write: bool) -> Document:
        passed = {name: self.command[name] for name in _PASSED_ON if name in self.command}
        if self.transaction is None:
            for name in ("lsid", "readConcern"):
                if name in self.command:
                    passed[name] = self.command[name]
            if write and "txnNumber" in self.command:
                passed["txnNumber"] = self.command["txnNumber"]
            return {**command, **passed}
        if self.transaction.state != "open":
            raise no_such_transaction(
                f"Transaction {self.transaction.number} has been {self.transaction.state}."
            )
        passed.pop("writeConcern", None)
        fields = self.transaction.fields_for(shard)
        if write:
            self.transaction.wrote(shard)
        return {**command, **passed, **fields}
