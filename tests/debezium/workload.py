"""A seeded workload whose messages are compared: writes of all kinds, and transactions."""

from contextlib import suppress
from random import Random
from typing import Any

from bson import MinKey
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import CollectionInvalid, OperationFailure

from tests.debezium import values
from tests.harness.clusters import Client

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS
)
DONE = "done"
"""The collection whose insert is the last event of a workload."""
INCREMENTAL, SIGNALS = "incremental", "signals"
"""The collection of which incremental snapshots are made, and that of the signals."""
_RARE = 0.04  # the share of steps that change collections, chunks or shard keys
_LARGE = 9 << 20
"""Bytes: of a document of whose update the event with both images exceeds a reply."""


class Workload:
    """Random writes to two databases, determined by a seed.

    Args:
        client: a client of a mongos.
        shards: the names of the cluster's shards.
        chance: makes all random choices.
        name: the prefix of the databases' names.
    """

    def __init__(self, client: Client, shards: list[str], chance: Random, name: str) -> None:
        self._client = client
        self._shards = shards
        self._chance = chance
        self.databases = (name, f"{name}-B")
        self._numbers = iter(range(1, 1_000_000))
        self._odd = list(values.ODD_IDENTIFIERS)
        self._known: dict[str, list[tuple[Any, int]]] = {}

    def prepare(self) -> None:
        """Create the collections: all with images, one sharded by a field, one by `_id`."""
        admin = self._client.admin
        for database in self.databases:
            admin.command("enableSharding", database, primaryShard=self._shards[0])
            for name in values.COLLECTIONS:
                images = {"changeStreamPreAndPostImages": {"enabled": True}}
                self._client[database].create_collection(name, **images)
        first = self.databases[0]
        admin.command("shardCollection", f"{first}.orders", key={"k": 1})
        admin.command("split", f"{first}.orders", middle={"k": 50})
        bounds = [{"k": MinKey()}, {"k": 50}]
        admin.command("moveChunk", f"{first}.orders", bounds=bounds, to=self._shards[-1])
        admin.command("shardCollection", f"{first}.p.w%q", key={"_id": "hashed"})
        for name in (INCREMENTAL, SIGNALS):
            self._client[first].create_collection(name)
        self._client[first][INCREMENTAL].insert_many([{"_id": n, "n": n * 1.5} for n in range(35)])

    def run(self, steps: int) -> None:
        """Make random writes."""
        doing = (
            self._insert, self._insert, self._update, self._update, self._update, self._replace,
            self._delete, self._transaction, self._abort,
        )  # fmt: skip
        rare = (
            self._move_chunk, self._change_shard_key, self._drop, self._rename, self._refine,
            self._drop_database,
        )  # fmt: skip
        for _ in range(steps):
            if self._chance.random() < _RARE:
                with suppress(OperationFailure):  # such as a collection that is not sharded
                    self._chance.choice(rare)()
            else:
                self._chance.choice(doing)(None)

    def write_large(self) -> None:
        """Make an event that exceeds a reply if it has both images."""
        collection = self._client[self.databases[0]][values.COLLECTIONS[2]]
        identifier = next(self._numbers)
        collection.insert_one({"_id": identifier, "k": 1, "pad": "x" * _LARGE})
        collection.update_one({"_id": identifier}, {"$set": {"k": 2}})

    def signal(self, number: int) -> None:
        """Ask for an incremental snapshot."""
        data = {"data-collections": [f"{self.databases[0]}.{INCREMENTAL}"], "type": "incremental"}
        signal = {"_id": f"signal {number}", "type": "execute-snapshot", "data": data}
        self._client[self.databases[0]][SIGNALS].insert_one(signal)

    def finish(self) -> None:
        """Make the last event."""
        self._client[self.databases[0]][DONE].insert_one({"_id": next(self._numbers)})

    def _move_chunk(self) -> None:
        name = f"{self.databases[0]}.orders"
        where = {"k": self._chance.choice((0, 99))}
        self._client.admin.command(
            "moveChunk", name, find=where, to=self._chance.choice(self._shards)
        )

    def _refine(self) -> None:
        name = f"{self.databases[0]}.orders"
        self._client[self.databases[0]].orders.create_index([("k", 1), ("_id", 1)])
        self._client.admin.command("refineCollectionShardKey", name, key={"k": 1, "_id": 1})

    def _change_shard_key(self) -> None:
        collection = self._client[self.databases[0]].get_collection("orders", codec_options=CODEC)
        keys = self._known.get(collection.full_name)
        if keys:
            at = self._chance.randrange(len(keys))
            identifier, k = keys[at]
            new = self._chance.randrange(100)
            collection.update_one({"_id": identifier, "k": k}, {"$set": {"k": new}})
            keys[at] = identifier, new

    def _drop(self) -> None:
        collection = self._collection()
        collection.drop()
        self._recreate(collection)

    def _rename(self) -> None:
        collection = self._collection()
        collection.rename(f"{collection.name} {next(self._numbers)}")
        self._recreate(collection)

    def _drop_database(self) -> None:
        database = self._client[self.databases[1]]
        self._client.drop_database(database)
        for name in values.COLLECTIONS:
            self._recreate(database[name])

    def _recreate(self, collection: Collection[dict[str, Any]]) -> None:
        self._known.pop(collection.full_name, None)
        images = {"changeStreamPreAndPostImages": {"enabled": True}}
        with suppress(CollectionInvalid):
            self._client[collection.database.name].create_collection(collection.name, **images)

    def _collection(self) -> Collection[dict[str, Any]]:
        database = self.databases[self._chance.random() < 0.2]
        name = self._chance.choice((*values.COLLECTIONS, "orders", "orders", "p.w%q"))
        return self._client[database].get_collection(name, codec_options=CODEC)

    def _insert(self, session: ClientSession | None) -> None:
        collection = self._collection()
        odd = self._chance.random() < 0.05 and self._odd
        identifier: Any = (
            self._odd.pop() if odd else values.identifier(self._chance, next(self._numbers))
        )
        k = self._chance.randrange(100)
        document = values.document(self._chance, identifier, k)
        collection.insert_one(document, session=session)  # type: ignore[arg-type]
        self._known.setdefault(collection.full_name, []).append((identifier, k))

    def _update(self, session: ClientSession | None) -> None:
        chance = self._chance
        name = chance.choice(("a", "b", "n.m", "list.1", "é"))
        changes: tuple[dict[str, Any] | list[Any], ...] = (
            {"$set": {name: values.value(chance)}},
            {"$set": {"a": values.value(chance), "n": {"m": values.value(chance)}}},
            {"$unset": {name: 1, "a": 1}},
            {"$set": {"list": [1, {"x": values.value(chance, 1)}, 3, 4]}},
            [{"$set": {"list": {"$slice": ["$list", 2]}}}],
            [{"$set": {"a": {"$literal": values.value(chance, 0)}}}],
            {"$push": {"pushed": values.value(chance)}},
            {"$inc": {"n.count": 1}},
            {"$currentDate": {"at": True, "ts": {"$type": "timestamp"}}},
        )
        self._change(session, lambda c, f: c.update_one(f, chance.choice(changes), session=session))

    def _replace(self, session: ClientSession | None) -> None:
        new = dict(values.fields(self._chance))
        new.pop("$d", None)

        def replace(collection: Collection[dict[str, Any]], wanted: dict[str, Any]) -> None:
            document = {"_id": wanted["_id"], "k": wanted["k"], **new}
            collection.replace_one(wanted, document, session=session)

        self._change(session, replace)

    def _delete(self, session: ClientSession | None) -> None:
        self._change(session, lambda c, f: c.delete_one(f, session=session))

    def _change(self, session: ClientSession | None, change: Any) -> None:
        collection = self._collection()
        keys = self._known.get(collection.full_name)
        if keys:
            identifier, k = self._chance.choice(keys[-20:])
            wanted = {"_id": identifier, "k": k}
            if session is not None:  # a failed write would abort the transaction
                change(collection, wanted)
            else:
                with suppress(OperationFailure):
                    change(collection, wanted)

    def _transaction(self, _: None, *, abort: bool = False) -> None:
        size = self._chance.choice((1, 2, 3, 8))
        with suppress(OperationFailure), self._client.start_session() as session:  # noqa: SIM117
            with suppress(_AbortError), session.start_transaction():
                for _ in range(size):
                    doing = (self._insert, self._insert, self._update, self._replace, self._delete)
                    self._chance.choice(doing)(session)
                if abort:
                    raise _AbortError

    def _abort(self, _: None) -> None:
        self._transaction(None, abort=True)


class _AbortError(Exception):
    """Ends a transaction without its commit."""
