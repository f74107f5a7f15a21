"""An embedded mongod: a replica set of one member, in memory."""

from typing import Any, Literal

from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.clients import Client
from embedded.logical_clock import LogicalClock
from embedded.oplog import Oplog, OplogEntry
from embedded.storage.bson_values import Document
from embedded.storage.catalog import Catalog

Role = Literal["shardsvr", "configsvr"]


class Mongod:
    """One member that is always primary of its replica set ``set_name``."""

    name: str
    role: Role
    set_name: str
    token_version: int
    clock: LogicalClock
    oplog: Oplog
    catalog: Catalog

    def __init__(
        self,
        name: str,
        role: Role = "shardsvr",
        set_name: str | None = None,
        *,
        token_version: int = 1,
        oplog_size: int = 200_000,
        noop_interval: float = 10.0,
        clock: LogicalClock | None = None,
    ) -> None: ...

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1."""

    async def stop(self) -> None:
        """Close everything."""

    @property
    def address(self) -> tuple[str, int]:
        """host, port."""
        raise NotImplementedError

    @property
    def host_string(self) -> str:
        """``set/127.0.0.1:port``, as config.shards has it."""
        raise NotImplementedError

    async def run_command(self, database: str, command: Document, client: Client) -> Document:
        """Answer one command with a whole reply, errors included as ``ok: 0``.

        Gossips: takes ``$clusterTime`` in, puts ``$clusterTime`` and ``operationTime`` on replies.
        """
        raise NotImplementedError

    async def execute(self, database: str, command: Document, client: Client) -> Document:
        """Like ``run_command``, but raises CommandError and leaves the gossip out."""
        raise NotImplementedError

    # what change streams read

    def find_one(self, ns: str, uuid: Binary | None, document_key: Document) -> Document | None:
        """Return the current document with this key from the collection with this UUID (and ns)."""
        raise NotImplementedError

    def pre_image(self, uuid: bytes, ts: Timestamp, apply_ops_index: int = 0) -> Document | None:
        """Return the document before the change logged at ``ts`` (the n-th operation of it)."""
        raise NotImplementedError

    # what the embedded mongos uses, without waiting in between

    def append_noop(
        self,
        o: Document,
        *,
        ns: str = "",
        uuid: Binary | None = None,
        o2: Document | None = None,
        from_migrate: bool = False,
    ) -> OplogEntry:
        """Log a no-op entry (periodic no-op, oplog note, shardCollection's event...)."""
        raise NotImplementedError

    def set_shard_key(self, ns: str, fields: tuple[str, ...]) -> None:
        """Make ``fields`` the shard key of a collection (documentKey from now on)."""

    def prepare_transaction(self, lsid: dict[str, Any], txn_number: int) -> Timestamp:
        """Prepare; returns the prepare timestamp. Raises NoSuchTransaction."""
        raise NotImplementedError

    def commit_transaction(
        self, lsid: dict[str, Any], txn_number: int, commit_time: Timestamp | None = None
    ) -> Timestamp:
        """Commit, prepared or not, at ``commit_time`` (default: a new tick); returns it.

        ``commit_time`` must be newer than this member's last oplog entry: take it from
        ``clock.tick()`` and commit on all shards without awaiting in between.
        """
        raise NotImplementedError

    def abort_transaction(self, lsid: dict[str, Any], txn_number: int) -> None:
        """Abort; unknown or finished: NoSuchTransaction."""
