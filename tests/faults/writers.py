"""Writers that record which of their writes succeeded, despite any failures."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pymongo.client_session import ClientSession
from pymongo.errors import CollectionInvalid, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from tests.harness.cluster_base import Client

DATABASE = "shop"
SHARDED = "orders"
UNSHARDED = "notes"
REMADE = "remade"
"""A collection that is created and dropped again and again, whose documents are in no ledger."""
MARKERS = "marker-"
_RETRY_SECONDS = 0.05

Step = tuple[str, int]
"""A document's ``_id`` and the number of the write; 0 is its insert."""


@dataclass(slots=True)
class Ledger:
    """The acknowledged writes of each document, with the times when they began."""

    begun: dict[Step, float] = field(default_factory=dict)
    """The start of each write, on the monotonic clock."""
    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    """The operation types of each ``_id``, in order."""
    drops: int = 0
    """The acknowledged drops of REMADE."""

    @property
    def writes(self) -> int:
        """The number of acknowledged writes."""
        return sum(map(len, self.acknowledged.values()))


class Writer:
    """Writes documents of its own, one write at a time, and retries each until it succeeds.

    Each write of a document requires the previous one, by the field ``n``. So an attempt whose
    reply was lost can be repeated, and a delayed attempt changes nothing after its repetition.

    Args:
        name: the prefix of its documents' ``_id``.
        uri: the server to write to.
        regions: values of the shard key, on different shards.
        ledger: records the acknowledged writes.
        pause: seconds between writes.
        remakes: the share of steps that create REMADE and drop it; of one writer alone.
    """

    def __init__(
        self,
        name: str,
        uri: str,
        regions: str,
        ledger: Ledger,
        *,
        seed: int,
        pause: float,
        remakes: float = 0.0,
    ) -> None:
        self.errors: dict[str, int] = {}
        self.name = name
        self._regions = regions
        self._ledger = ledger
        self._pause = pause
        self._remakes = remakes
        self._chance = random.Random(f"{seed} {name}")
        self._client: Client = Client(
            uri, serverSelectionTimeoutMS=5000, socketTimeoutMS=8000, wTimeoutMS=5000, appname=name
        )
        self._database = self._client.get_database(
            DATABASE, write_concern=WriteConcern("majority", wtimeout=5000)
        )
        self._live: list[dict[str, Any]] = []
        self._made = 0
        self._stop = threading.Event()

    def run(self) -> None:
        """Write until ``stop`` is called."""
        with self._client:
            while not self._stop.wait(self._pause * self._chance.uniform(0.2, 1.8)):
                dice = self._chance.random()
                if self._chance.random() < self._remakes:
                    self._remake()
                elif dice < 0.4 or len(self._live) < 5:
                    self._insert(self._new())
                elif dice < 0.5:
                    self._insert_many([self._new() for _ in range(self._chance.randint(2, 15))])
                elif dice < 0.7:
                    self._change(self._chance.choice(self._live), "update")
                elif dice < 0.8:
                    self._change(self._chance.choice(self._live), "replace")
                elif dice < 0.88:
                    self._change(self._chance.choice(self._live), "delete")
                else:
                    self._transact()

    def stop(self) -> None:
        """End after the current write."""
        self._stop.set()

    def mark(self, number: int) -> None:
        """Insert a document that all watchers see. Call it before or after ``run``."""
        document = {"_id": f"{MARKERS}{number}", "region": self._regions[0], "n": 0}
        self._insert({**document, "in": SHARDED})

    def _remake(self) -> None:
        """Create a collection, fill it, and drop it, which ends its streams."""
        tries = 0

        def create() -> None:
            with suppress(CollectionInvalid):  # an earlier attempt has created it
                self._database.create_collection(REMADE)

        def drop() -> None:
            nonlocal tries
            tries += 1
            self._database.drop_collection(REMADE)

        self._until_done(create)
        self._until_done(lambda: self._database[REMADE].insert_one({"region": "a"}))
        self._until_done(drop)
        self._ledger.drops += tries == 1  # a later attempt may have found it dropped

    def _new(self) -> dict[str, Any]:
        self._made += 1
        collection = SHARDED if self._chance.random() < 0.85 else UNSHARDED
        return {
            "_id": f"{self.name}-{self._made}",
            "region": self._chance.choice(self._regions),
            "n": 0,
            "in": collection,
            "pad": "x" * self._chance.choice((10, 100, 1000)),
        }

    def _insert(self, document: dict[str, Any]) -> None:
        self._begin(document, 0)

        def attempt() -> None:
            try:
                self._database[document["in"]].insert_one(dict(document))
            except DuplicateKeyError:
                # An earlier attempt succeeded; it must also be majority committed.
                self._require(document, 0)

        self._until_done(attempt)
        self._acknowledge(document, "insert")

    def _insert_many(self, documents: list[dict[str, Any]]) -> None:
        for document in documents:
            document["in"] = SHARDED
            self._begin(document, 0)
        pending = list(documents)

        def attempt() -> None:
            try:
                self._database[SHARDED].insert_many([dict(each) for each in pending], ordered=False)
            except PyMongoError:
                pending[:] = [each for each in pending if not self._is_at(each, 0)]
                if pending:
                    raise

        self._until_done(attempt)
        for document in documents:
            self._acknowledge(document, "insert")

    def _change(self, document: dict[str, Any], how: str) -> None:
        number = document["n"] + 1
        self._begin(document, number)

        def attempt() -> None:
            if not self._apply(document, how, None):
                self._require(document, None if how == "delete" else number)

        self._until_done(attempt)
        self._changed(document, how)

    def _apply(self, document: dict[str, Any], how: str, session: ClientSession | None) -> bool:
        """Change the document if it is in the expected state; return whether it was."""
        collection = self._database[document["in"]]
        before = {key: document[key] for key in ("_id", "region", "n")}
        number = document["n"] + 1
        if how == "update":
            change = {"$set": {"n": number, f"at{number % 3}": number}}
            return collection.update_one(before, change, session=session).matched_count == 1
        if how == "replace":
            new = {**document, "n": number}
            return collection.replace_one(before, new, session=session).matched_count == 1
        return collection.delete_one(before, session=session).deleted_count == 1

    def _transact(self) -> None:
        """Change several documents and insert one, on several shards, in one transaction."""
        some = self._chance.sample(self._live, self._chance.randint(1, min(3, len(self._live))))
        hows = [self._chance.choice(("update", "update", "replace", "delete")) for _ in some]
        new = self._new()
        for document in some:
            self._begin(document, document["n"] + 1)
        self._begin(new, 0)

        def body(session: ClientSession) -> None:
            self._database[new["in"]].insert_one(dict(new), session=session)
            for document, how in zip(some, hows, strict=True):
                if not self._apply(document, how, session):
                    raise _ChangedMeanwhileError

        def attempt() -> None:
            try:
                with self._client.start_session() as session:
                    session.with_transaction(
                        body,
                        read_concern=ReadConcern("snapshot"),
                        write_concern=WriteConcern("majority", wtimeout=5000),
                        max_commit_time_ms=5000,
                    )
            except (DuplicateKeyError, _ChangedMeanwhileError):
                # The commit returned an error but succeeded.
                self._require(new, 0)

        self._until_done(attempt)
        self._acknowledge(new, "insert")
        for document, how in zip(some, hows, strict=True):
            self._changed(document, how)

    def _begin(self, document: dict[str, Any], number: int) -> None:
        self._ledger.begun.setdefault((document["_id"], number), time.monotonic())

    def _acknowledge(self, document: dict[str, Any], how: str) -> None:
        self._ledger.acknowledged.setdefault(document["_id"], []).append(how)
        if how == "insert" and not document["_id"].startswith(MARKERS):
            self._live.append(document)

    def _changed(self, document: dict[str, Any], how: str) -> None:
        self._acknowledge(document, how)
        document["n"] += 1
        if how == "delete":
            self._live.remove(document)

    def _is_at(self, document: dict[str, Any], number: int | None) -> bool:
        """Return whether the last majority-committed write is ``number``; None means deleted."""
        collection = self._database[document["in"]].with_options(
            read_concern=ReadConcern("majority")
        )
        stored = collection.find_one({"_id": document["_id"], "region": document["region"]})
        return (None if stored is None else stored["n"]) == number

    def _require(self, document: dict[str, Any], number: int | None) -> None:
        if not self._is_at(document, number):
            raise _ChangedMeanwhileError

    def _until_done(self, attempt: Callable[[], None]) -> None:
        while True:
            try:
                attempt()
            except (PyMongoError, _ChangedMeanwhileError) as error:
                name = f"{type(error).__name__} {getattr(error, 'code', '')}".strip()
                self.errors[name] = self.errors.get(name, 0) + 1
                time.sleep(_RETRY_SECONDS)
                continue
            return


class _ChangedMeanwhileError(Exception):
    """A document is not in its writer's last state, or that is not majority committed yet."""
