"""Applications and an administrator that use the cluster through its mongos."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from bson import Binary
from bson.int64 import Int64

from embedded.client import Client
from embedded.cluster import EmbeddedCluster
from embedded.mongod import Mongod
from tests.simulation.trace import Trace

SHARDED = (("app", "orders"), ("side", "items"))
PLAIN = (("app", "notes"), ("side", "log"), ("tmp", "scratch"))
_COLLECTIONS = SHARDED + PLAIN
_KEYS = 60
_EXPECTED = frozenset({20, 24, 26, 48, 96, 112, 117, 118, 225, 251, 11000, 263, 70, 2})
"""Errors of concurrent applications: locks, conflicts, missing and existing names."""


class Workload:
    """Writers and one administrator, each a coroutine that ends after its steps."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        chance: Random,
        trace: Trace,
        *,
        transactions: float,
        definitions: float,
    ) -> None:
        self._cluster = cluster
        self._chance = chance
        self._trace = trace
        self._transactions = transactions
        self._definitions = definitions
        self._client = Client()
        self._numbers = iter(range(1, 1_000_000))
        self._ids: dict[str, list[int]] = {}
        self._shard_numbers = iter(range(len(cluster.shards), 1_000))
        self._removed: list[str] = []
        self._joined: dict[str, str] = {}
        """The sort keys beyond which clients know the shards that were added."""
        self.shards_ever = {name: cluster.shard(name) for name in cluster.shards}
        self.restarting: set[str] = set()
        """Members that are being restarted."""
        self.progress: Callable[[], str] = str
        """The sort key up to which all clients have all events."""

    @property
    def shards_now(self) -> list[Mongod]:
        """The shards of the cluster."""
        return [self._cluster.shard(name) for name in self._cluster.shards]

    async def run(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        """Run a command; errors that applications do not expect make the seed fail."""
        reply = await self._cluster.mongos.run_command(database, command, self._client)
        if reply["ok"] != 1.0 and reply.get("code") not in _EXPECTED:
            self._trace.problem(f"mongos refused {command}: {reply}")
        return reply

    async def prepare(self) -> None:
        """Create the sharded collections and spread their chunks over the shards."""
        names = list(self._cluster.shards)
        width = max(1, _KEYS // max(3, len(names)))
        for index, (database, name) in enumerate(SHARDED):
            namespace = f"{database}.{name}"
            primary = names[index % len(names)]
            await self.run("admin", {"enableSharding": database, "primaryShard": primary})
            await self.run("admin", {"shardCollection": namespace, "key": {"k": 1}})
            for at, shard in zip(range(width, _KEYS, width), names[1:], strict=False):
                await self.run("admin", {"split": namespace, "middle": {"k": at}})
                await self.run("admin", {"moveChunk": namespace, "find": {"k": at}, "to": shard})

    async def write(self, steps: int, pause: float) -> None:
        """Run one application: ``steps`` writes with pauses of ``pause`` seconds on average."""
        lsid = {"id": Binary(self._chance.randbytes(16), 4)}
        for number in range(1, steps + 1):
            await asyncio.sleep(self._chance.expovariate(1 / pause))
            if self._chance.random() < self._transactions:
                await self._transaction(lsid, number)
            else:
                await self._step()

    async def _step(self) -> None:
        database, name = self._chance.choice(_COLLECTIONS)
        chance = self._chance.random()
        if chance < self._definitions and (database, name) in PLAIN:
            await self._definition(database, name)
        else:
            await self.run(database, self._statement(database, name))

    def _statement(self, database: str, name: str) -> dict[str, Any]:
        ids = self._ids.setdefault(f"{database}.{name}", [])
        chance = self._chance.random()
        if chance < 0.55 or not ids:
            documents = [self._document(ids) for _ in range(self._chance.choice((1, 1, 1, 5)))]
            return {"insert": name, "documents": documents}
        if chance < 0.62:
            many = {"k": {"$gte": self._chance.randrange(_KEYS)}}
            update = {"q": many, "u": {"$inc": {"n": 1}}, "multi": True}
            return {"update": name, "updates": [update]}
        query = {"_id": self._chance.choice(ids)}
        if chance < 0.9:
            return {
                "update": name,
                "updates": [{"q": query, "u": {"$inc": {"n": 1}}, "multi": True}],
            }
        return {"delete": name, "deletes": [{"q": query, "limit": 0}]}

    def _document(self, ids: list[int]) -> dict[str, Any]:
        number = next(self._numbers)
        ids.append(number)
        document: dict[str, Any] = {"_id": number, "k": self._chance.randrange(_KEYS), "n": 0}
        if self._chance.random() < 0.1:
            document["text"] = "x" * self._chance.randrange(4000)
        return document

    async def _transaction(self, lsid: dict[str, Any], number: int) -> None:
        fields = {"lsid": lsid, "txnNumber": Int64(number), "autocommit": False}
        for first in range(self._chance.randrange(1, 4)):
            database, name = self._chance.choice(SHARDED)
            begin = {"startTransaction": True} if not first else {}
            statement = {**self._statement(database, name), **fields, **begin}
            if (await self.run(database, statement))["ok"] != 1.0:
                return
            await asyncio.sleep(self._chance.random() * 0.02)
        end = "abortTransaction" if self._chance.random() < 0.2 else "commitTransaction"
        await self.run("admin", {end: 1, **fields})

    async def _definition(self, database: str, name: str) -> None:
        chance = self._chance.random()
        self._trace.note(f"DDL on {database}.{name} {chance:.2f}")
        if chance < 0.5:
            await self.run(database, {"drop": name})
        elif chance < 0.6:
            await self.run(database, {"create": name})
        elif chance < 0.75:
            await self.run(
                database, {"createIndexes": name, "indexes": [{"key": {"n": 1}, "name": "n_1"}]}
            )
        elif chance < 0.9:
            rename = {"renameCollection": f"{database}.{name}", "to": f"{database}.{name}2"}
            await self.run("admin", {**rename, "dropTarget": True})
        elif database == "tmp":
            await self.run(database, {"dropDatabase": 1})

    # The administrator.

    async def administrate(self, steps: list[str], span: float) -> None:
        """Run ``steps`` in this order, spread over ``span`` seconds."""
        for step in steps:
            await asyncio.sleep(self._chance.random() * 2 * span / max(1, len(steps)))
            self._trace.note(f"administrator: {step}")
            await self._administrative(step)

    async def _administrative(self, step: str) -> None:
        shards = list(self._cluster.shards)
        database, name = self._chance.choice(SHARDED)
        namespace = f"{database}.{name}"
        at = {"k": self._chance.randrange(_KEYS)}
        shard = self._chance.choice(shards)
        if step == "move":
            await self.run("admin", {"moveChunk": namespace, "find": at, "to": shard})
        elif step == "split":
            await self.run("admin", {"split": namespace, "middle": at})
        elif step == "move primary":
            await self.run(
                "admin", {"movePrimary": self._chance.choice(("app", "side", "tmp")), "to": shard}
            )
        elif step == "move home":
            await self.run("admin", {"movePrimary": "tmp", "to": shard})
        elif step == "drop sharded":
            await self.run(database, {"drop": name})
        elif step == "add shard":
            await self._add_shard()
        elif step in ("remove shard", "remove shard in haste"):
            await self._remove_shard(shard, in_haste=step != "remove shard")
        elif step == "new address":
            await self._move_to_new_address(shard)
        elif step == "add again" and self._removed:
            name = self._removed.pop()
            await self._join(name, self.shards_ever[name].host_string)

    async def _add_shard(self) -> None:
        """Start another server, add it as a shard and give it chunks at once."""
        name = f"shard{next(self._shard_numbers)}"
        reply = await self.run("admin", {"startShard": name})
        await asyncio.sleep(self._chance.random() * 0.3)
        self.shards_ever[name] = self._cluster.shard(name)
        await self._join(name, reply["host"])

    async def _join(self, name: str, host: str) -> None:
        await self.run("admin", {"addShard": host, "name": name})
        self._joined[name] = f"82{self._cluster.config_server.journal.position + 1:016X}"
        await self._give_work(name)

    async def _give_work(self, name: str) -> None:
        fresh = f"on{name}"
        for _ in range(self._chance.randrange(4)):
            database, collection = self._chance.choice(SHARDED)
            at = {"k": self._chance.randrange(_KEYS)}
            move = {"moveChunk": f"{database}.{collection}", "find": at, "to": name}
            await self.run("admin", move)
        await self.run("admin", {"enableSharding": fresh, "primaryShard": name})
        for _ in range(self._chance.randrange(4)):
            ids = self._ids.setdefault(f"{fresh}.c", [])
            await self.run(fresh, {"insert": "c", "documents": [self._document(ids)]})

    async def _move_to_new_address(self, name: str) -> None:
        """Restart a shard's server at another address and update config.shards."""
        mongod = self.shards_ever[name]
        if name in self.restarting:
            return
        self.restarting.add(name)
        await mongod.stop()
        await asyncio.sleep(self._chance.random() * 0.5)
        await mongod.start()
        self.restarting.discard(name)
        change = {"q": {"_id": name}, "u": {"$set": {"host": mongod.host_string}}}
        await self.run("config", {"update": "shards", "updates": [change]})

    async def _remove_shard(self, name: str, *, in_haste: bool) -> None:
        """Drain a shard and remove it, once all clients have its events or in haste.

        All clients have seen that it was added (docs/limitations.md).
        """
        others = [each for each in self._cluster.shards if each != name]
        if len(others) < 2 or self.progress() < self._joined.get(name, ""):
            return
        catalog = self._cluster.state.catalog
        await self.run("admin", {"removeShard": name})
        for database in [each for each, primary in catalog.databases.items() if primary == name]:
            await self.run("admin", {"movePrimary": database, "to": self._chance.choice(others)})
        for collection in list(catalog.collections.values()):
            for chunk in [each for each in collection.chunks if each.shard == name]:
                low = dict(zip(collection.key.fields, chunk.low, strict=True))
                move = {"moveChunk": collection.namespace, "min": low}
                await self.run("admin", {**move, "to": self._chance.choice(others)})
        mongod = self.shards_ever[name]
        told = f"82{mongod.journal.position + 1:016X}"
        if not in_haste and not await self._all_have_read(told):
            self._trace.note(f"{name} stays: somebody has not read it to its end")
            return
        reply = await self.run("admin", {"removeShard": name})
        self._trace.note(f"removing {name}: {reply.get('state')}")
        if reply.get("state") != "completed":
            return
        if self._chance.random() < 0.5:
            self._removed.append(name)
        elif await self._all_have_read(told) and await self._nobody_reads(mongod):
            await asyncio.sleep(self._chance.random())
            self._trace.note(f"stopping {name}")
            self.restarting.add(name)  # permanently
            await mongod.stop()

    async def _all_have_read(self, told: str) -> bool:
        """Wait until all clients have all events up to a sort key; give up after a while."""
        return await _becomes(lambda: self.progress() > told)

    async def _nobody_reads(self, removed: Mongod) -> bool:
        """Wait until no stream reads a removed shard, as operators must if none shows the removal.

        All clients then have all events up to that time. Gives up after a while.
        """
        if removed.server_version.shows_removed_shards:
            return True
        if not await _becomes(lambda: not len(removed.cursors)):
            return False
        config = self._cluster.config_server
        return await self._all_have_read(f"82{config.journal.position + 1:016X}")


async def _becomes(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return False after twenty seconds without it."""
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.1)
    return False
