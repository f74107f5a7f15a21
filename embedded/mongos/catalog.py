"""The cluster's metadata: shards, databases, sharded collections and their chunks."""

from dataclasses import dataclass
from datetime import datetime

from bson import Binary, Timestamp

from embedded.errors import CommandError, ErrorCode
from embedded.logical_clock import LogicalClock
from embedded.mongos.chunk_map import ChunkMap
from embedded.mongos.shard_key import ShardKey
from embedded.mongos.shards import Shard, raise_write_error
from embedded.storage.bson_values import Document

CONFIG_DATABASES = frozenset({"admin", "config"})
"""The databases of the config server."""


@dataclass
class ShardedCollection:
    """One sharded collection, as config.collections describes it."""

    namespace: str
    uuid: Binary
    chunks: ChunkMap
    unique: bool
    timestamp: Timestamp

    @property
    def key(self) -> ShardKey:
        """The shard key."""
        return self.chunks.key


class ClusterCatalog:
    """The cluster's metadata, in memory; but for chunks, config's collections have it, too.

    Args:
        config: the config server.
        gossip: the mongos's cluster time.
    """

    def __init__(self, config: Shard, gossip: LogicalClock) -> None:
        self.config = config
        self.gossip = gossip
        self.databases: dict[str, str] = {}
        """The id of each database's primary shard, which holds its unsharded collections."""
        self.collections: dict[str, ShardedCollection] = {}
        self._shards: dict[str, Shard] = {}
        self._draining: set[str] = set()

    # Shards

    @property
    def shards(self) -> list[Shard]:
        """All shards, in the order in which they were added."""
        return list(self._shards.values())

    def shard(self, name: str) -> Shard:
        """Return a shard by id.

        Raises:
            CommandError: 70 ShardNotFound.
        """
        shard = self._shards.get(name)
        if shard is None:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {name} not found")
        return shard

    def named(self, names: set[str]) -> list[Shard]:
        """Return the shards with these ids, in the order of ``shards``."""
        return [shard for shard in self._shards.values() if shard.id in names]

    def has_shard(self, name: str) -> bool:
        """Return whether a shard has this id."""
        return name in self._shards

    def is_draining(self, name: str) -> bool:
        """Return whether a shard is being removed."""
        return name in self._draining

    async def add_shard(self, shard: Shard) -> None:
        """Add ``shard`` to the cluster, with a document in config.shards."""
        self.config.report_time()
        entry = {
            "_id": shard.id,
            "host": shard.host,
            "state": 1,
            "topologyTime": self.gossip.time,
        }
        await self._insert("shards", [entry])
        self._shards[shard.id] = shard

    async def set_draining(self, shard: Shard) -> None:
        """Mark a shard as being removed."""
        self._draining.add(shard.id)
        await self._update("shards", {"_id": shard.id}, {"$set": {"draining": True}})

    async def remove_shard(self, shard: Shard) -> None:
        """Remove a drained shard from the cluster.

        As on 6.0, no change stream shows the removal; on 7.0 and newer it is a delete event
        (docs/protocol.md#sharded-cluster).
        """
        if self.config.mongod.server_version.shows_removed_shards:
            await self._delete("shards", {"_id": shard.id})
        else:
            self.config.adopt_time()
            self.config.mongod.delete_by_apply_ops("config.shards", shard.id)
            self.config.report_time()
        del self._shards[shard.id]
        self._draining.discard(shard.id)

    # Databases

    def primary_of(self, database: str) -> Shard | None:
        """Return the primary shard of a database, ``None`` if the database does not exist.

        For admin and config, return the config server.
        """
        if database in CONFIG_DATABASES:
            return self.config
        name = self.databases.get(database)
        return None if name is None else self._shards[name]

    def databases_on(self, shard: Shard) -> list[str]:
        """Return the databases whose primary shard this is."""
        return [name for name, primary in self.databases.items() if primary == shard.id]

    def chunks_on(self, shard: Shard) -> int:
        """Return the number of chunks of sharded collections that this shard owns."""
        return sum(
            chunk.shard == shard.id for each in self.collections.values() for chunk in each.chunks
        )

    async def create_database(self, name: str, primary: Shard | None = None) -> Shard:
        """Return the primary shard of ``name``, creating the database if necessary.

        Args:
            name: the database.
            primary: where to create it; default: the shard with the fewest writes.

        Raises:
            CommandError: 70 if the cluster has no shard; 48 NamespaceExists if the database exists
                on another shard than ``primary``.
        """
        existing = self.primary_of(name)
        if existing is not None:
            if primary is not None and existing is not primary:
                raise CommandError(
                    ErrorCode.NamespaceExists,
                    f"database already created on a primary which is different from "
                    f"{primary.id}"
                )  # fmt: skip
            return existing
        chosen = primary or self._emptiest_shard()
        self.databases[name] = chosen.id
        await self._insert("databases", [{"_id": name, "primary": chosen.id}])
        return chosen

    async def move_primary(self, name: str, to: Shard) -> None:
        """Make ``to`` the primary shard of a database."""
        self.databases[name] = to.id
        await self._update("databases", {"_id": name}, {"$set": {"primary": to.id}})

    async def forget_database(self, name: str) -> None:
        """Remove a dropped database."""
        if self.databases.pop(name, None) is not None:
            await self._delete("databases", {"_id": name})

    def _emptiest_shard(self) -> Shard:
        candidates = [shard for shard in self.shards if shard.id not in self._draining]
        if not candidates:
            raise CommandError(ErrorCode.ShardNotFound, "the cluster has no shard")
        return min(candidates, key=_writes_on)

    # Sharded collections

    def sharded_in(self, database: str) -> list[ShardedCollection]:
        """Return the sharded collections of a database, sorted by name."""
        prefix = f"{database}."
        return [self.collections[ns] for ns in sorted(self.collections) if ns.startswith(prefix)]

    def holders(self, collection: ShardedCollection) -> list[Shard]:
        """Return the shards that own chunks of a collection, in the order of ``shards``."""
        return self.named(collection.chunks.shards)

    async def add_collection(self, collection: ShardedCollection, now: datetime) -> None:
        """Record a newly sharded collection."""
        self.collections[collection.namespace] = collection
        await self._insert(
            "collections",
            [
                {
                    "_id": collection.namespace,
                    "lastmod": now,
                    "timestamp": collection.timestamp,
                    "uuid": collection.uuid,
                    "key": dict(collection.key.pattern),
                    "unique": collection.unique,
                    "noBalance": False,
                }
            ],
        )

    async def forget_collection(self, collection: ShardedCollection) -> None:
        """Remove a dropped collection."""
        del self.collections[collection.namespace]
        await self._delete("collections", {"_id": collection.namespace})

    async def rename_collection(self, collection: ShardedCollection, to: str) -> None:
        """Record the new name of a sharded collection."""
        [entry] = await self.read("collections", {"_id": collection.namespace})
        await self._delete("collections", {"_id": collection.namespace})
        await self._insert("collections", [{**entry, "_id": to}])
        del self.collections[collection.namespace]
        collection.namespace = to
        self.collections[to] = collection

    # The config server's collections

    async def read(self, name: str, filter_: Document) -> list[Document]:
        """Return the documents of ``config.<name>`` that match."""
        reply = await self.config.execute("config", {"find": name, "filter": filter_})
        return list(reply["cursor"]["firstBatch"])

    async def _insert(self, name: str, documents: list[Document]) -> None:
        await self._write({"insert": name, "documents": documents})

    async def _update(self, name: str, query: Document, update: Document) -> None:
        await self._write({"update": name, "updates": [{"q": query, "u": update}]})

    async def _delete(self, name: str, query: Document) -> None:
        await self._write({"delete": name, "deletes": [{"q": query, "limit": 1}]})

    async def _write(self, command: Document) -> None:
        raise_write_error(await self.config.execute("config", command))


def _writes_on(shard: Shard) -> int:
    """Return the oplog's length, as a measure of the size of a shard's files."""
    return len(shard.mongod.oplog)
