"""One member of a replica set, in memory: its data and the operations on it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any, Literal

import structlog
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from embedded.access.control import AccessControl
from embedded.cursors import CursorTable
from embedded.elections import Elections
from embedded.errors import no_such_transaction, unknown_transaction
from embedded.journal import Journal
from embedded.logical_clock import LogicalClock
from embedded.oplog import Oplog, OplogEntry
from embedded.server_version import V6_0, ServerVersion
from embedded.sessions import SessionTable
from embedded.storage.bson_values import MISSING, Document, id_key, value_at
from embedded.storage.catalog import Catalog
from embedded.storage.collection import ID_INDEX, Collection
from embedded.transactions import Transaction
from embedded.write_unit import Operation

log = structlog.get_logger()

Role = Literal["shardsvr", "configsvr"]


class Member:
    """The state of a member: clock, oplog, collections, sessions and cursors. No network I/O.

    It is the only member of its set: what is logged is majority-committed at once.

    Args:
        name: the replica set's name, and for logs.
        role: the role in the sharded cluster.
        server_version: the version of MongoDB that it behaves as.
        oplog_size: the number of entries that the oplog holds.
        noop_interval: seconds without a write after which a no-op is logged; 0 for never.
        wall: the wall clock, in seconds since 1970.
        random: the source of UUIDs and cursor ids.
        access: who may use the server; by default everybody.
    """

    def __init__(
        self,
        name: str,
        role: Role = "shardsvr",
        *,
        server_version: ServerVersion = V6_0,
        oplog_size: int = 200_000,
        noop_interval: float = 10.0,
        wall: Callable[[], float] = time.time,
        random: Random | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self.name = name
        self.role: Role = role
        self.server_version = server_version
        self.noop_interval = noop_interval
        self.wall = wall
        self.address = ("127.0.0.1", 0)
        self._random = random or Random()
        self.clock = LogicalClock(wall)
        self.oplog = Oplog(oplog_size)
        self.journal = Journal(self.clock, self.oplog, wall)
        self.catalog = Catalog(self.new_uuid)
        self.access = access or AccessControl()
        self.cursors = CursorTable(self._random)
        self.sessions = SessionTable()
        self.topology_version = self.new_process()
        self.elections = Elections()
        self.append_noop({"msg": "initiating set"})

    @property
    def host_string(self) -> str:
        """``set/host:port``, as in config.shards."""
        host, port = self.address
        return f"{self.name}/{host}:{port}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return 0

    def step_down(self, *, kill_cursors: bool = False) -> None:
        """Become secondary until ``step_up``; ``kill_cursors`` also closes all cursors."""
        self.elections.step_down()
        self._changed_state()
        if kill_cursors:
            self.cursors.close()

    def step_up(self) -> None:
        """Win an election."""
        self.elections.step_up()
        self._changed_state()

    def _changed_state(self) -> None:
        counter = Int64(self.topology_version["counter"] + 1)
        self.topology_version = {**self.topology_version, "counter": counter}
        log.info("member state changed", member=self.name, primary=self.elections.is_primary)

    def new_process(self) -> dict[str, Any]:
        """Return the topology version of a process that has just started."""
        return {"processId": ObjectId(self._random.randbytes(12)), "counter": Int64(6)}

    def now(self) -> datetime:
        """Return the wall clock as a BSON date, in UTC without a zone."""
        moment = datetime.fromtimestamp(self.wall(), UTC).replace(tzinfo=None)
        return moment.replace(microsecond=moment.microsecond // 1000 * 1000)

    def new_uuid(self) -> Binary:
        """Return a new random UUID."""
        value = bytearray(self._random.randbytes(16))
        value[6] = (value[6] & 0x0F) | 0x40
        value[8] = (value[8] & 0x3F) | 0x80
        return Binary(bytes(value), 4)

    def new_object_id(self) -> ObjectId:
        """Return a new object id: the current second, then random bytes."""
        return ObjectId(int(self.wall()).to_bytes(4, "big") + self._random.randbytes(8))

    def find_one(self, ns: str, uuid: Binary | None, document_key: Document) -> Document | None:
        """Return the current document with this key; None if it or the collection is gone.

        With ``uuid`` the lookup uses the collection with that UUID, under any name.
        """
        collection = self.catalog.get(ns) if uuid is None else self.catalog.by_uuid(uuid)
        document = None if collection is None else collection.get(id_key(document_key["_id"]))
        if document is None or any(
            not _same(value_at(document, path), value) for path, value in document_key.items()
        ):
            return None
        return document

    # Operations of commands and of the embedded mongos; none of them waits

    def append_noop(
        self,
        o: Document,
        *,
        ns: str = "",
        uuid: Binary | None = None,
        o2: Document | None = None,
    ) -> OplogEntry:
        """Log a no-op: a message or, with ``o2``, an entry that change streams show as an event."""
        fields: dict[str, Any] = {"op": "n", "ns": ns}
        if uuid is not None:
            fields["ui"] = uuid
        fields["o"] = o
        if o2 is not None:
            fields["o2"] = o2
        return self.journal.log(fields)

    def create_collection(
        self,
        database: str,
        name: str,
        options: Document | None = None,
        *,
        uuid: Binary | None = None,
        from_migrate: bool = False,
    ) -> Collection:
        """Create a collection and log it.

        Raises:
            CommandError: 48 NamespaceExists.
        """
        collection = self.catalog.create(database, name, options, uuid)
        o = {"create": name, **collection.options, "idIndex": dict(ID_INDEX)}
        self.journal.log_command(database, o, uuid=collection.uuid, from_migrate=from_migrate)
        return collection

    def drop_collection(self, collection: Collection, *, from_migrate: bool = False) -> None:
        """Drop a collection and log it."""
        self.journal.log_command(
            collection.database,
            {"drop": collection.name},
            uuid=collection.uuid,
            o2={"numRecords": len(collection)},
            from_migrate=from_migrate,
        )
        self.catalog.drop(collection)

    def delete_by_apply_ops(self, ns: str, _id: Any) -> None:
        """Delete a document by a plain ``applyOps`` command, which no change stream shows.

        6.0 ends the removal of a shard this way (docs/protocol.md#sharded-cluster).

        Raises:
            CommandError: 26 NamespaceNotFound.
        """
        collection = self.catalog.require(ns)
        before = collection.get(id_key(_id))
        if before is None:
            return
        operation = Operation(collection, before, None)
        o = {"applyOps": [operation.entry]}
        entry = self.journal.log_command(collection.database, o)
        self.journal.apply(operation, entry["ts"], entry["ts"], 0)

    def set_shard_key(self, ns: str, fields: tuple[str, ...]) -> None:
        """Set the shard key, whose ``fields`` lead document keys from now on.

        Raises:
            CommandError: 26 NamespaceNotFound.
        """
        self.catalog.require(ns).shard_key = fields

    def prepare_transaction(self, lsid: dict[str, Any], txn_number: int) -> Timestamp:
        """Prepare a transaction for a commit on several shards; return the prepare timestamp.

        Raises:
            CommandError: 251 NoSuchTransaction if it is not in progress.
        """
        transaction = self._transaction(lsid, txn_number)
        if transaction.state == "prepared" and transaction.prepared_at is not None:
            return transaction.prepared_at
        if transaction.state != "in progress":
            raise no_such_transaction(f"Transaction {txn_number} has been {transaction.state}.")
        return self.journal.prepare(transaction)

    def commit_transaction(self, lsid: dict[str, Any], txn_number: int) -> Timestamp:
        """Commit a transaction, prepared or not; return the cluster time of the commit.

        Committing again returns the same time.

        Raises:
            CommandError: 251 NoSuchTransaction if it was aborted or is unknown.
        """
        transaction = self._transaction(lsid, txn_number)
        if transaction.state == "aborted":
            raise no_such_transaction(f"Transaction {txn_number} has been aborted.")
        if transaction.committed_at is not None:
            return transaction.committed_at
        return self.journal.commit(transaction)

    def abort_transaction(self, lsid: dict[str, Any], txn_number: int) -> None:
        """Abort a transaction.

        Raises:
            CommandError: 251 NoSuchTransaction if it has ended or is unknown.
        """
        transaction = self._transaction(lsid, txn_number)
        if not transaction.is_open:
            raise no_such_transaction(f"Transaction {txn_number} has been {transaction.state}.")
        self.journal.abort(transaction)

    def _transaction(self, lsid: dict[str, Any], txn_number: int) -> Transaction:
        session = self.sessions.find(lsid)
        transaction = session.transaction if session is not None else None
        if transaction is None or transaction.txn_number != txn_number:
            raise unknown_transaction(txn_number, session.txn_number if session is not None else -1)
        return transaction


def _same(value: Any, wanted: Any) -> bool:
    return value is not MISSING and id_key(value) == id_key(wanted)
