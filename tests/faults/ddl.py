"""A writer of DDL: collections that are created, changed, renamed and dropped, despite failures."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from pymongo.errors import OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from tests.faults.writers import DATABASE
from tests.harness.cluster_base import Client
from tests.harness.until import Deadline

DDL_PREFIX = "ddl_"
"""Prefix of the names of this writer's collections, whose documents are in no ledger."""

WATCHED = "ddl_0"
"""A collection that is created and dropped again and again."""

_NAMES = 2
_RETRY_SECONDS = 0.2
_EXISTS, _NOT_FOUND, _ALREADY_SHARDED = 48, 26, 23


class DdlWriter:
    """Creates, changes, renames and drops collections, one step at a time.

    Each step can be repeated, so an attempt whose reply was lost does no harm. A step that fails
    for a minute is left out.

    Args:
        uri: the server to write to.
        seed: determines the steps.
        pause: seconds between collections.
    """

    def __init__(self, uri: str, *, seed: int, pause: float) -> None:
        self.acknowledged: Counter[tuple[str, str]] = Counter()
        """The number of steps of each operation type on each collection."""
        self.errors: Counter[str] = Counter()
        self._pause = pause
        self._chance = random.Random(f"{seed} ddl")
        self._client: Client = Client(
            uri, serverSelectionTimeoutMS=5000, socketTimeoutMS=15000, appname="ddl"
        )
        self._database = self._client.get_database(
            DATABASE, write_concern=WriteConcern("majority", wtimeout=5000)
        )
        self._stop = threading.Event()

    def run(self) -> None:
        """Give collections their lives until ``stop`` is called."""
        number = 0
        with self._client:
            while not self._stop.wait(self._pause * self._chance.uniform(0.2, 1.8)):
                self._live(f"{DDL_PREFIX}{number % _NAMES}")
                number += 1

    def stop(self) -> None:
        """End after the current step."""
        self._stop.set()

    def _live(self, name: str) -> None:
        """Create, fill, change, and drop a collection, perhaps sharded, perhaps renamed."""
        renamed = f"{name}_renamed"
        for each in (name, renamed):  # a rest of a life whose steps were left out
            if each in self._names():
                self._drop(each)
        images = {"enabled": True}
        self._step(
            "create", name,
            lambda: self._database.create_collection(name, changeStreamPreAndPostImages=images),
            done=(_EXISTS,),
        )  # fmt: skip
        if self._chance.random() < 0.4:
            self._shard(name)
        self._write(name, 0)
        self._step(
            "createIndexes", name, lambda: self._database[name].create_index("n", name="n_1")
        )
        hidden = {"name": "n_1", "hidden": True}
        self._step("modify", name, lambda: self._database.command("collMod", name, index=hidden))
        self._write(name, 1)
        if self._chance.random() < 0.5:
            rename = {"renameCollection": f"{DATABASE}.{name}", "to": f"{DATABASE}.{renamed}"}
            concern = {"w": "majority"}
            self._step(
                "rename", name,
                lambda: self._client.admin.command(rename, writeConcern=concern),
                done=(_NOT_FOUND,),
            )  # fmt: skip
            self._write(renamed, 2)
            self._drop(renamed)
        else:
            self._drop(name)

    def _shard(self, name: str) -> None:
        """Spread the collection over both shards, so that its drop comes from both."""
        namespace, admin = f"{DATABASE}.{name}", self._client.admin
        self._step(
            "shardCollection", name,
            lambda: admin.command("shardCollection", namespace, key={"region": 1}),
            done=(_ALREADY_SHARDED,),
        )  # fmt: skip
        try:
            admin.command("split", namespace, middle={"region": "m"})
            admin.command("moveChunk", namespace, find={"region": "t"}, to="shard1")
        except PyMongoError as error:
            self._count(error)  # it stays on one shard

    def _write(self, name: str, round_: int) -> None:
        collection = self._database[name]
        change = {"$set": {"round": round_}}
        for region in "at":
            document = {"_id": f"{name} {region}", "region": region}
            self._step("", name, partial(collection.update_one, document, change, upsert=True))

    def _drop(self, name: str) -> None:
        self._step("drop", name, lambda: self._database.drop_collection(name))

    def _names(self) -> list[str]:
        names: list[str] = []
        self._step("", "", lambda: names.extend(self._database.list_collection_names()))
        return names

    def _step(
        self, kind: str, name: str, attempt: Callable[[], object], done: tuple[int, ...] = ()
    ) -> None:
        """Repeat ``attempt`` until it succeeds or fails with a code that shows it is ``done``."""
        deadline, tried = Deadline(), False
        while not (self._stop.is_set() or deadline.passed):
            try:
                attempt()
            except PyMongoError as error:
                if not (tried and isinstance(error, OperationFailure) and error.code in done):
                    self._count(error)
                    tried = True
                    self._stop.wait(_RETRY_SECONDS)
                    continue
            else:
                # After a failure the step may have been another attempt's.
                if kind and not tried:
                    self.acknowledged[kind, name] += 1
            return

    def _count(self, error: PyMongoError) -> None:
        self.errors[f"{type(error).__name__} {getattr(error, 'code', '')}".strip()] += 1
