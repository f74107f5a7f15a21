"""Applications write and watch through the router while chunks move and a shard is added."""

import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pymongo
import pytest
from bson import MinKey
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.routers import RouterProcess
from tests.harness.until import PATIENCE

MOVES = 15
LEAST = 40
"""The number of documents that each application inserts."""

APPLICATIONS = 3
_AGAIN = {13388, 24, 96}
"""The codes of StaleConfig, LockTimeout and OperationFailed (an interrupted migration)."""

_NOT_MOVED = re.compile("would move shards and that transaction failed|There is either an orphan")
REGIONS = "abchijpqz"
LAST = "the last document"

pytestmark = pytest.mark.timeout(120)


@dataclass
class Application:
    """Writes documents of its own and records the state that they must have at the end."""

    number: int
    client: Client
    documents: dict[int, dict[str, Any]] = field(default_factory=dict)

    def run(self, rearranged: threading.Event) -> None:
        chance = random.Random(self.number)
        key = self.number * 1_000_000
        while not rearranged.is_set() or len(self.documents) < LEAST:
            key += 10
            self._write(chance, key)

    def _write(self, chance: random.Random, key: int) -> None:
        orders, region, dice = self.client.shop.orders, chance.choice(REGIONS), chance.random()
        if dice < 0.4 or not self.documents:
            self._note({"_id": key, "region": region, "n": 0})
            retried(lambda: orders.insert_one(dict(self.documents[key])))
            return
        if dice > 0.8:
            self._insert_together([key + i for i in range(4)], chance)
            return
        victim = chance.choice(list(self.documents.values()))
        where = {"_id": victim["_id"], "region": victim["region"]}
        if dice < 0.6:
            retried(lambda: orders.update_one(where, {"$inc": {"n": 1}}))
            victim["n"] += 1
        elif dice < 0.7:
            retried(lambda: orders.update_one(where, {"$set": {"region": region}}))
            victim["region"] = region
        else:
            retried(lambda: orders.delete_one(where))
            del self.documents[victim["_id"]]

    def _insert_together(self, keys: list[int], chance: random.Random) -> None:
        documents = [{"_id": key, "region": chance.choice("ahz"), "n": 0} for key in keys]

        def insert(session: Any) -> None:
            for document in documents:
                self.client.shop.orders.insert_one(dict(document), session=session)

        with self.client.start_session() as session:
            session.with_transaction(insert)
        for document in documents:
            self._note(document)

    def _note(self, document: dict[str, Any]) -> None:
        self.documents[document["_id"]] = document


def retried(command: Callable[[], object]) -> None:
    """Run a command until it succeeds: mongos gives up after some tries while a chunk moves.

    A change of a document's shard key runs in a transaction. It may fail as any transaction may,
    or because the new shard still has an orphan of the document. A failed try changes nothing.
    """
    while True:
        try:
            command()
            return
        except OperationFailure as error:
            if error.code not in _AGAIN and not _NOT_MOVED.search(str(error)):
                raise


class Watcher:
    """Collects the collection's events until the last document's has arrived."""

    def __init__(self, client: Client) -> None:
        self.events: list[dict[str, Any]] = []
        self._stream = client.shop.orders.watch()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _watch(self) -> None:
        for event in self._stream:
            self.events.append(event)
            if event["documentKey"]["_id"] == LAST:
                return


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(3) as running:
        yield running


@pytest.fixture
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    arguments = [f"--configdb={cluster.configdb}", "--port=0", f"--upstream={cluster.mongos_uri}"]
    with RouterProcess(arguments) as running:
        yield running


def rearrange(client: Client, cluster: TestCluster) -> None:
    """Split and move chunks at random, and add a shard after half of the moves."""
    chance, admin = random.Random(99), client.admin
    for move in range(MOVES):
        where = {"region": chance.choice(REGIONS), "_id": 1}
        to = chance.choice([*cluster.shards])
        retried(
            lambda where=where, to=to: admin.command("moveChunk", "shop.orders", find=where, to=to)
        )
        if move == MOVES // 2:
            cluster.add_shard()
        if move % 3 == 0:
            middle = {"region": chance.choice(REGIONS), "_id": chance.randrange(9) * 1_000_000 + 1}
            try:
                admin.command("split", "shop.orders", middle=middle)
            except OperationFailure:
                continue  # already the bound of a chunk


def replayed(events: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Apply the events; return the resulting documents.

    Documents are identified by their whole document key: a change of shard is a delete and an
    insert at about the same cluster time, in either order.
    """
    documents: dict[Any, dict[str, Any]] = {}
    for event in events:
        key = tuple(event["documentKey"].values())
        match event["operationType"]:
            case "insert":
                assert key not in documents
                documents[key] = event["fullDocument"]
            case "update":
                document = documents.pop(key) | event["updateDescription"]["updatedFields"]
                documents[document["region"], document["_id"]] = document
            case "delete":
                del documents[key]
            case other:
                raise AssertionError(other)
    assert len({key[-1] for key in documents}) == len(documents)
    return {document["_id"]: document for document in documents.values()}


def test_every_event_arrives_once_in_order_while_chunks_move(
    cluster: TestCluster, router: RouterProcess
) -> None:
    client: Client
    with pymongo.MongoClient(router.uri) as client:
        client.admin.command("enableSharding", "shop", primaryShard="shard0")
        client.admin.command("shardCollection", "shop.orders", key={"region": 1, "_id": 1})
        for at in "hp":
            middle = {"region": at, "_id": MinKey()}
            client.admin.command("split", "shop.orders", middle=middle)
        watcher = Watcher(client)
        rearranged = threading.Event()
        applications = [Application(number, client) for number in range(1, APPLICATIONS + 1)]
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(application.run, rearranged) for application in applications]
            try:
                rearrange(client, cluster)
            finally:
                rearranged.set()
            for each in running:
                each.result()
        client.shop.orders.insert_one({"_id": LAST, "region": "a"})
        watcher.wait()
        stored = {document["_id"]: document for document in client.shop.orders.find()}
    expected = {k: d for application in applications for k, d in application.documents.items()}
    expected[LAST] = {"_id": LAST, "region": "a"}
    assert len(expected) > APPLICATIONS * LEAST
    assert stored == expected
    assert replayed(watcher.events) == expected
    tokens = [event["_id"]["_data"] for event in watcher.events]
    assert tokens == sorted(set(tokens))
