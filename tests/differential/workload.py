"""A random workload of one seed: writes, transactions, definitions and moves, through a mongos."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from bson import MinKey
from pymongo import AsyncMongoClient, InsertOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

from tests.differential import raw_values, values

Client = AsyncMongoClient[dict[str, Any]]
Documents = AsyncCollection[dict[str, Any]]
Step = Callable[[], Awaitable[Any]]

SHARDED = ("orders", "hashed", "images")
PLAIN = ("plain", "kept", "other")
_MEGABYTE = 1 << 20
THEMES: dict[str, dict[str, float]] = {
    "mixed": {},
    "incarnations": {
        "reincarnate": 12,
        "drop": 5,
        "drop_database": 2,
        "move_primary": 2,
        "replace_collection": 8,
    },
    "backlog": {"transaction": 20},
    "large": {"transaction": 12},
    "raw": {"insert_raw": 20, "update_raw": 30, "drop": 0.3, "drop_database": 0.1},
}
"""What the seeds' workloads have more of: the weights of their steps."""
CREATE_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"capped": True, "size": 4096},
    {"changeStreamPreAndPostImages": {"enabled": True}},
    {"validator": {"n": {"$exists": True}}},
    {"collation": {"locale": "en", "strength": 2}},
    {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
)
"""The options of the collections in PLAIN that a workload creates; some refuse documents."""


class Workload:
    """Random operations, determined by a seed, on two databases of their own.

    Some of them fail, depending on timing: streams are compared with each other, never with
    the workload's intended changes.

    Args:
        client: a client of the mongos.
        shards: the names of the cluster's shards.
        chance: makes all random choices.
        name: the prefix of the databases' names.
        theme: what it has more of, one of THEMES.
        on_step: called with a line for each operation, with its error if it failed.
    """

    def __init__(
        self,
        client: Client,
        shards: Sequence[str],
        chance: Random,
        name: str,
        theme: str,
        on_step: Callable[[str], None],
    ) -> None:
        self._theme = theme
        self._more = THEMES[theme]
        self._client = client
        self._shards = list(shards)
        self._chance = chance
        self._on_step = on_step
        self.databases = (f"{name}a", f"{name}b")
        self.renamed: set[tuple[str, str]] = set()
        """The database and the name of each collection that has been renamed, before that."""
        self._numbers = iter(range(1, 1_000_000))
        self._keys: dict[str, list[tuple[Any, int]]] = {}
        self._steps: list[tuple[float, Step]] = [
            (22, self._insert),
            (8, self._insert_many),
            (20, self._update),
            (7, self._replace),
            (8, self._delete),
            (4, self._find_and_modify),
            (3, self._bulk),
            (2, self._update_many),
            (1.5, self._change_shard_key),
            (6, self._transaction),
            (2, self._at_once),
            (1.5, self._create),
            (1.5, self._drop),
            (1.2, self._rename),
            (2, self._indexes),
            (1.5, self._modify),
            (0.6, self._drop_database),
            (0.5, self._shard_one_more),
            (0.5, self._move_chunk),
            (0.2, self._move_primary),
            (0.3, self._refine_key),
            (0.6, self._view),
            (0.4, self._time_series),
            (0.3, self._reincarnate),
            (0.3, self._replace_collection),
            (0, self._insert_raw),
            (0, self._update_raw),
        ]

    async def prepare(self) -> None:
        """Create the databases and their collections."""
        first, second = self.databases
        await self._try("enableSharding", self._enable_sharding(first))
        images = {"changeStreamPreAndPostImages": {"enabled": True}}
        await self._try("create images", self._client[first].create_collection("images", **images))
        await self._try("shard orders", self._shard(f"{first}.orders", {"k": 1}, spread=True))
        if self._chance.random() < 0.4:
            await self._try("shard hashed", self._shard(f"{first}.hashed", {"_id": "hashed"}))
        if self._chance.random() < 0.3:
            key = {"k": 1, "_id": 1}
            await self._try("shard images", self._shard(f"{first}.images", key, spread=True))
        await self._try("enableSharding", self._enable_sharding(second))

    async def run(self, steps: int) -> None:
        """Run ``steps`` random operations, one after the other."""
        choices = [step for _, step in self._steps]
        weights = [self._more.get(step.__name__[1:], weight) for weight, step in self._steps]
        for step in self._chance.choices(choices, weights, k=steps):
            await self._try(step.__name__.strip("_").replace("_", " "), step())
        if self._theme == "large":
            await self._try("large documents", self._large())

    async def _try(self, what: str, doing: Awaitable[Any]) -> None:
        try:
            result = await doing
        except PyMongoError as error:
            self._on_step(f"  {what}: {str(error)[:150]}")
        else:
            self._on_step(f"  {what}" + (f": {result}" if isinstance(result, str) else ""))

    def _documents(self, names: Sequence[str] = SHARDED + PLAIN) -> Documents:
        database = self.databases[self._chance.random() < 0.2]
        return self._client[database][self._chance.choice(names)]

    def _new(self, documents: Documents) -> dict[str, Any]:
        document = values.document(self._chance, values.key(self._chance, next(self._numbers)))
        self._keys.setdefault(documents.full_name, []).append((document["_id"], document["k"]))
        return document

    def _known(self, documents: Documents) -> dict[str, Any]:
        keys = self._keys.get(documents.full_name)
        if not keys:
            return {"_id": -1, "k": 1}
        key, shard_key = self._chance.choice(keys[-12:])
        return {"_id": key, "k": shard_key} if self._chance.random() < 0.7 else {"_id": key}

    # Writes.

    async def _insert(self) -> str:
        documents = self._documents()
        await documents.insert_one(self._new(documents))
        return documents.name

    async def _insert_many(self) -> str:
        documents = self._documents()
        new = [self._new(documents) for _ in range(self._chance.randrange(2, 12))]
        await documents.insert_many(new, ordered=self._chance.random() < 0.5)
        return f"{len(new)} in {documents.name}"

    async def _update(self) -> str:
        documents = self._documents()
        upsert = self._chance.random() < 0.15
        change = values.update(self._chance)
        await documents.update_one(self._known(documents), change, upsert=upsert)
        return f"{documents.name} {str(change)[:80]}"

    async def _update_many(self) -> None:
        await self._documents().update_many(
            {"k": {"$gte": self._chance.randrange(60)}}, values.update(self._chance)
        )

    async def _replace(self) -> None:
        documents = self._documents()
        where = self._known(documents)
        document = values.document(self._chance, where["_id"])
        document["k"] = where.get("k", document["k"])
        await documents.replace_one(where, document, upsert=self._chance.random() < 0.2)

    async def _delete(self) -> None:
        documents = self._documents()
        if self._chance.random() < 0.2:
            await documents.delete_many({"k": {"$gte": 50}})
        else:
            await documents.delete_one(self._known(documents))

    async def _find_and_modify(self) -> None:
        documents = self._documents()
        where = self._known(documents)
        if self._chance.random() < 0.3:
            await documents.find_one_and_delete(where)
        else:
            await documents.find_one_and_update(where, values.update(self._chance), upsert=True)

    async def _bulk(self) -> None:
        documents = self._documents()
        requests: list[Any] = [InsertOne(self._new(documents)) for _ in range(4)]
        requests += [UpdateOne(self._known(documents), values.update(self._chance))] * 2
        self._chance.shuffle(requests)
        await documents.bulk_write(requests, ordered=self._chance.random() < 0.5)

    async def _change_shard_key(self) -> None:
        documents = self._documents(("orders",))
        change = {"$set": {"k": self._chance.randrange(60)}}
        await documents.update_one(self._known(documents), change)

    async def _at_once(self) -> None:
        """Write to several collections at the same time."""
        steps = self._chance.choices((self._insert, self._insert_many, self._update), k=4)
        await asyncio.gather(*(step() for step in steps), return_exceptions=True)

    async def _transaction(self) -> str:
        async with self._client.start_session() as session, await session.start_transaction():
            for _ in range(self._chance.randrange(1, 5)):
                documents = self._documents()
                await self._write_in(session, documents)
            if self._chance.random() < 0.15:
                await session.abort_transaction()
                return "aborted"
        return "committed"

    async def _write_in(self, session: AsyncClientSession, documents: Documents) -> None:
        kind = self._chance.random()
        if kind < 0.4:
            made = [self._new(documents) for _ in range(self._chance.choice((1, 1, 2, 30)))]
            await documents.insert_many(made, session=session)
        elif kind < 0.8:
            change = values.update(self._chance)
            await documents.update_one(self._known(documents), change, session=session)
        elif kind < 0.9:
            made = {"_id": self._known(documents)["_id"], "k": 3, "replaced": True}
            await documents.replace_one({"_id": made["_id"]}, made, session=session)
        else:
            await documents.delete_one(self._known(documents), session=session)

    async def _large(self) -> None:
        documents = self._client[self.databases[0]].images
        size = self._chance.choice((6, 6, 9, 9, 15)) * _MEGABYTE
        where = {"_id": self._chance.choice(("large", 1.5)), "k": 1}
        await documents.insert_one({**where, "pad": "a" * size})
        images = {"changeStreamPreAndPostImages": {"enabled": True}}
        await documents.database.command("collMod", documents.name, **images)
        await documents.update_one(where, {"$set": {"pad": "b" * size}})
        async with self._client.start_session() as session, await session.start_transaction():
            await documents.insert_one(self._new(documents), session=session)
            await documents.update_one(
                where, {"$set": {"n": 1, "pad": "c" * size}}, session=session
            )
            await documents.insert_one(self._new(documents), session=session)
        await documents.update_one(where, {"$set": {"n": 2}})
        if self._chance.random() < 0.5:
            await documents.delete_one(where)

    async def _insert_raw(self) -> str:
        documents = self._documents()
        new = [raw_values.document(self._chance, next(self._numbers)) for _ in range(5)]
        self._keys.setdefault(documents.full_name, []).extend((each["_id"], 1) for each in new)
        await documents.insert_many(new, ordered=False)
        return documents.name

    async def _update_raw(self) -> str:
        documents = self._documents()
        for _ in range(4):
            where = {"_id": self._known(documents)["_id"]}
            with suppress(PyMongoError):
                await documents.update_one(where, raw_values.update(self._chance))
        return documents.name

    # Definitions.

    async def _create(self) -> str:
        documents = self._documents(PLAIN)
        options = self._chance.choice(CREATE_OPTIONS)
        await documents.database.create_collection(documents.name, check_exists=False, **options)
        return f"{documents.name} {options}"

    async def _drop(self) -> str:
        documents = self._documents(PLAIN if self._chance.random() < 0.7 else SHARDED)
        await documents.drop()
        return documents.name

    async def _rename(self) -> str:
        documents = self._documents(PLAIN)
        new = self._chance.choice(PLAIN)
        await documents.rename(new, dropTarget=self._chance.random() < 0.5)
        self.renamed.add((documents.database.name, documents.name))
        return f"{documents.name} to {new}"

    async def _indexes(self) -> None:
        documents = self._documents()
        if self._chance.random() < 0.6:
            await documents.create_index([("n", 1), ("tags", -1)], sparse=True)
        else:
            await documents.drop_indexes()

    async def _modify(self) -> None:
        documents = self._documents()
        change = self._chance.choice(
            (
                {"changeStreamPreAndPostImages": {"enabled": self._chance.random() < 0.7}},
                {"validator": {"k": {"$exists": True}}, "validationLevel": "moderate"},
                {"index": {"name": "n_1_tags_-1", "hidden": True}},
            )
        )
        await documents.database.command("collMod", documents.name, **change)

    async def _drop_database(self) -> str:
        database = self.databases[self._chance.random() < 0.6]
        await self._client.drop_database(database)
        return database

    async def _view(self) -> None:
        database = self._client[self.databases[0]]
        if self._chance.random() < 0.6:
            pipeline = [{"$match": {"n": self._chance.randrange(3)}}]
            await database.command("create", "view", viewOn="plain", pipeline=pipeline)
        else:
            await database.view.drop()

    async def _time_series(self) -> None:
        database = self._client[self.databases[0]]
        if "series" not in await database.list_collection_names():
            await database.create_collection("series", timeseries={"timeField": "t"})
        value = values.scalar(self._chance)
        await database.series.insert_one({"t": values.date(self._chance), "v": value})

    # Sharding.

    async def _enable_sharding(self, database: str) -> None:
        shard = self._chance.choice(self._shards)
        await self._client.admin.command("enableSharding", database, primaryShard=shard)

    async def _shard(self, namespace: str, key: dict[str, Any], *, spread: bool = False) -> None:
        await self._client.admin.command("shardCollection", namespace, key=key)
        if not spread:
            return
        rest = {name: MinKey() for name in list(key)[1:]}
        for at, shard in zip((20, 40), self._chance.sample(self._shards, 2), strict=True):
            middle = {"k": at, **rest}
            await self._client.admin.command("split", namespace, middle=middle)
            await self._client.admin.command("moveChunk", namespace, find=middle, to=shard)

    async def _reincarnate(self) -> str:
        """Drop a database or a collection and begin it anew, maybe on another shard."""
        database = self._client[self.databases[self._chance.random() < 0.8]]
        names = self._chance.sample(PLAIN, self._chance.randrange(1, 4))
        if self._chance.random() < 0.6:
            await self._client.drop_database(database.name)
            await self._enable_sharding(database.name)
        else:
            await database[names[0]].drop()
        for name in names:
            if self._chance.random() < 0.4:
                with suppress(PyMongoError):  # it is sharded already
                    await self._shard(f"{database.name}.{name}", {"_id": "hashed"})
            await database[name].insert_one(self._new(database[name]))
        return f"{database.name} {names}"

    async def _replace_collection(self) -> str:
        """Put a sharded collection in the place of another one, which one shard alone may have."""
        database = self._client[self.databases[self._chance.random() < 0.8]]
        old, new = database[self._chance.choice(PLAIN)], database.new
        await self._shard(new.full_name, {"_id": "hashed"})
        await new.insert_one(self._new(new))
        await new.rename(old.name, dropTarget=True)
        self.renamed.add((database.name, new.name))
        return old.full_name

    async def _shard_one_more(self) -> str:
        documents = self._documents(PLAIN)
        await self._shard(documents.full_name, {"_id": "hashed"})
        return documents.full_name

    async def _move_chunk(self) -> str:
        where = {"k": self._chance.randrange(60), "_id": 1}
        shard = self._chance.choice(self._shards)
        namespace = f"{self.databases[0]}.orders"
        await self._client.admin.command("moveChunk", namespace, find=where, to=shard)
        return f"to {shard}"

    async def _move_primary(self) -> str:
        shard = self._chance.choice(self._shards)
        await self._client.admin.command("movePrimary", self.databases[1], to=shard)
        return f"to {shard}"

    async def _refine_key(self) -> None:
        documents = self._documents(("orders",))
        await documents.create_index([("k", 1), ("_id", 1)])
        command = {"key": {"k": 1, "_id": 1}}
        await self._client.admin.command("refineCollectionShardKey", documents.full_name, **command)
