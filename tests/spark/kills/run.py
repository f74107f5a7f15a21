"""One seed: a deployment, a job, random writes, faults, and the comparison at the end."""

import random
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymongo
from bson.timestamp import Timestamp
from deltalake import DeltaTable, write_deltalake
from pymongo.errors import OperationFailure, PyMongoError
from pyspark.sql import SparkSession

from spark_sink import read_at
from spark_sink.errors import OptionError
from spark_sink.events.positions import AtTime, key_of
from spark_sink.folders import Folder
from spark_sink.jobs.history.left_out_events import seek
from spark_sink.jobs.history.restoration import rebuild_table
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.options.scope import Scope
from spark_sink.snapshot.signal_channels import send
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable
from spark_sink.verification.verify_job import verify_job
from tests.doubles.table_damages import damages
from tests.harness.clusters import Client
from tests.harness.object_store import BUCKET, ObjectStore
from tests.harness.until import Deadline, wait_for
from tests.spark.cluster.nodes import SETTINGS, SparkNodes
from tests.spark.conftest import Shop
from tests.spark.kills.deployments import Deployment, deployed
from tests.spark.kills.job_process import JobProcess
from tests.spark.kills.writer import Writer
from tests.spark.tables import collections_of, documents_in

_COMMIT_SECONDS = 600.0  # a machine with many other programs starts a JVM in minutes
_DOCUMENTS = 1500
_OPTIONS = {"snapshotMode": "initial", "maxEventsPerTrigger": "300", "snapshotChunkRows": "100"}
_IN_TASKS = {"maxBytesPerTrigger": "1g"}
"""Options with which the driver does not read small batches by itself."""
_DATABASE = "shop"
_LAST = {"_id": -1}
"""The document that is written last."""

_TABLES = ("bronze", "current", "messages", "notifications", "quarantine")
_SPLITS = (2, 7)  # customers are 0 to 9, and conftest's Shop has split at 5
_SCOPES = (
    (_DATABASE, f"--option=collection.exclude.list={_DATABASE}[.]built"),
    (f"{_DATABASE}.orders", f"{_DATABASE}.items"),
)
"""What the job follows: the first without the collection that is built aside, the second also
without `others`."""
_KINDS = (
    *("router", "primary", "driver", "executor"),
    *("move", "shard", "signal", "swap", "scope", "seek"),
)
KINDS, ON_CLUSTER = (*_KINDS, "disk"), (*_KINDS, "worker", "host")
ON_STORE = ("router", "driver", "outage", "stall")
"""The faults, each of which every seed has once at least, if its servers can have it; on a cluster
of Spark, and with tables on an object store.

`router` kills what the job reads through, a mongos if there is no router; `primary` kills that of a
set, `disk` is full for some seconds, `signal` requests a snapshot, `swap` renames a collection into
the scope, `scope` starts the job with other collections, and `seek` sets it to the present.
`worker` kills one of Spark's with its executors, and `host` starts the job on another host while it
runs, or, with `stall`, while it stands still. `outage` is the store's.
"""


@dataclass(slots=True)
class Outcome:
    """What a seed has seen."""

    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    writes: int = 0
    events: int = 0
    batches: int = 0
    starts: int = 0
    ends: list[int] = field(default_factory=list)
    """The exit statuses of the job's starts that ended by themselves."""
    refused: Counter[str] = field(default_factory=Counter)
    """Errors of the writer and of migrations, which change nothing."""

    def __str__(self) -> str:
        kinds = Counter(self.faults)
        faults = ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
        return (
            f"{len(self.problems)} problems; {self.writes} writes, {self.events} events in "
            f"{self.batches} batches; {faults}; {self.starts} starts of the job, of which "
            f"{len(self.ends)} ended with {sorted(set(self.ends)) or 'nothing'}; refused: "
            f"{dict(self.refused) or 'nothing'}"
        )


class Faults:
    """Makes the faults of one seed; each waits until a batch has been committed since."""

    def __init__(
        self,
        deployment: Deployment,
        shop: Shop,
        host: Callable[[str], JobProcess],
        chance: random.Random,
        nodes: SparkNodes | None,
        store: ObjectStore | None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._deployment = deployment
        self._shop = shop
        self.job = job = host("job")
        self._host = host
        self._chance = chance
        self._make: dict[str, Callable[[], object]] = {
            "router": lambda: deployment.kill_router(chance.uniform(0, 1)),
            "primary": lambda: deployment.kill_primary(chance.random(), chance.uniform(0, 4)),
            "driver": job.kill,
            "executor": lambda: self._wait_for_kill(job.kill_worker),
            "disk": self._fill_disk,
            "move": self._move,
            "shard": self._add_shard,
            "signal": self._signal,
            "swap": self._swap,
            "scope": self._change_scope,
            "seek": self._seek,
            "host": lambda: self._take_over(stalls=False),
            "stall": lambda: self._take_over(stalls=True),
        }
        if nodes is not None:
            self._make["executor"] = lambda: self._wait_for_kill(nodes.kill_executor)
            self._make["worker"] = lambda: nodes.kill_worker(chance)
        if store is not None:
            self._make["outage"] = lambda: self._outage(store)

    def run(self, kind: str) -> None:
        """Let a fault of this kind happen at a random moment, and the job go on."""
        self.wait_for_batch(self.job.committed)
        time.sleep(self._chance.uniform(0, 1.5))  # the moment within a batch
        before = self.job.committed
        self._make[kind]()
        self.wait_for_batch(before)

    def wait_for_batch(self, number: int) -> None:
        """Wait until a later batch is committed; the job is started again whenever it ends."""

        def later() -> bool:
            self.job.keep_running()
            return self.job.committed > number

        try:
            wait_for(later, f"a batch after {number}", _COMMIT_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; the job: {self.job.last_output()}") from None

    def _wait_for_kill(self, kill: Callable[[random.Random], bool]) -> None:
        def killed() -> bool:
            self.job.keep_running()
            return kill(self._chance)

        wait_for(killed, "a process of an executor", _COMMIT_SECONDS)

    def _take_over(self, *, stalls: bool) -> None:
        """Run the job on another host until the first one's has ended, and stop it there.

        With ``stalls``, the first one's stands still until the other has written.
        """
        job, other = self.job, self._host(f"host {self._chance.randrange(10**9)}")
        other.scope, number, items = job.scope, job.committed, self._shop.client[_DATABASE].items

        def has_written() -> bool:
            other.keep_running()
            with suppress(PyMongoError):  # without events neither host commits
                items.update_one({"_id": 0}, {"$inc": {"n": 1}}, upsert=True)
            return other.committed > number

        try:
            job.keep_running()
            told = len(job.log.read_text())
            if stalls:
                job.pause()
                wait_for(has_written, "the other host's batch", _COMMIT_SECONDS)
                job.resume()
            what = "the end of the first host's job"
            wait_for(lambda: has_written() and job.has_ended, what, _COMMIT_SECONDS)
            assert not stalls or "another start" in job.log.read_text()[told:], job.last_output()
            if self._chance.random() < 0.5:
                assert other.end() == 0, other.last_output()
        except AssertionError as error:
            raise AssertionError(f"{error}; the job: {other.last_output()}") from None
        finally:
            other.kill()

    def _outage(self, store: ObjectStore) -> None:
        store.stop()
        time.sleep(self._chance.uniform(1, 15))  # clients wait, or give up
        store.start()

    def _fill_disk(self) -> None:
        self.job.limit_files(self._chance.choice((0, 1_000, 10_000)))
        time.sleep(self._chance.uniform(0, 4))
        self.job.limit_files(resource.RLIM_INFINITY)

    def _move(self) -> None:
        self._move_to(self._chance.choice(self._deployment.shards))

    def _add_shard(self) -> None:
        self._move_to(self._deployment.add_shard())

    def _move_to(self, shard: str) -> None:
        customer = {"customer": self._chance.randrange(10)}
        try:
            self._shop.client.admin.command(
                "moveChunk", f"{_DATABASE}.orders", find=customer, to=shard
            )
        except OperationFailure as error:  # such as a migration whose range is being cleaned up
            self.refused[error.details["codeName"] if error.details else str(error)] += 1

    def _signal(self) -> None:
        kind = self._chance.choice(("incremental", "blocking"))
        data = {"type": kind, "data-collections": [f"{_DATABASE}.orders"]}
        send(self.job.folder.signals, {"type": "execute-snapshot", "data": data})

    def _swap(self) -> None:
        """Rename a collection into the scope, over another one, and perhaps again."""
        database, chance = self._shop.client[_DATABASE], self._chance
        name, other = chance.sample(("items", "others"), 2)
        numbers = chance.sample(range(60), 30)
        database.built.insert_many([{"_id": number, "built": 1} for number in numbers])
        database.built.rename(name, dropTarget=True)
        match chance.randrange(3):
            case 0:
                database[name].rename(other, dropTarget=True)
            case 1:
                database[other].drop()

    def _stop_job(self) -> None:
        if self._chance.random() < 0.5:
            self.job.kill()
        else:
            self.job.keep_running()
            self.job.end()

    def _change_scope(self) -> None:
        self._stop_job()
        before = self.job.scope
        self.job.scope = next(each for each in _SCOPES if each != before)

    def _seek(self) -> None:
        self._stop_job()
        now = self._shop.now()
        try:
            seek(self.job.folder, f"{now.time},{now.inc}")
        except OptionError as error:  # a snapshot is in progress, or no event has followed
            self.refused[str(error)[-40:]] += 1


def run_seed(
    seed: int,
    folder: Path,
    spark: SparkSession,
    extra: int,
    kinds: Sequence[str] = KINDS,
    reads: str = "router",
    nodes: SparkNodes | None = None,
    store: ObjectStore | None = None,
) -> Outcome:
    """Run one seed in an empty folder, which is left behind if there are problems.

    Args:
        extra: random faults beside one of each kind.
        reads: what the job reads, one of `conftest.DEPLOYMENTS`.
        nodes: a cluster of Spark for the job.
        store: where its tables are, if not in the folder.
    """
    chance, outcome = random.Random(seed), Outcome()
    with deployed(reads, chance.choice((1, 3))) as deployment:
        kinds = [each for each in kinds if each not in deployment.lacks]
        outcome.faults = [*kinds, *chance.choices(kinds, k=extra)]
        chance.shuffle(outcome.faults)
        shop = Shop(deployment.uri, _DATABASE, deployment.shards, deployment.beside)
        for middle in _SPLITS if deployment.shards else ():
            namespace = f"{_DATABASE}.orders"
            shop.client.admin.command("split", namespace, middle={"customer": middle})
        shop.insert(_DOCUMENTS)
        shop.client[_DATABASE].items.insert_one({"_id": 0})
        shop.client[_DATABASE].others.insert_one({"_id": 0})
        options = {**_OPTIONS, **(_IN_TASKS if seed % 2 else {})}

        def host(name: str) -> JobProcess:
            out = None if store is None else f"s3://{BUCKET}/{folder.name}"
            where = deployment.uri, folder / name, _SCOPES[0], options, out
            if nodes is None:
                return JobProcess(*where)
            conf = {**SETTINGS, "spark.master": nodes.master}
            return JobProcess(*where, conf, nodes.driver(name))

        faults = Faults(deployment, shop, host, chance, nodes, store)
        job = faults.job
        writer = Writer(shop, job, seed)
        try:
            writer.start()
            for kind in outcome.faults:
                faults.run(kind)
            writer.stop()
            if store is not None:  # the time below is after the job's first snapshot
                _catch_up(shop, job, {"_id": -2})
            time, then = shop.now(), collections_of(shop)
            _catch_up(shop, job, _LAST)
            status = job.end()
            if status != 0:
                outcome.problems.append(f"SIGTERM ended the job with {status}")
            outcome.problems += _problems(spark, shop, job.folder, deployment.truth)
            if store is not None and not {"scope", "seek"} & {*outcome.faults}:
                outcome.problems += _history_differs(spark, job.folder, time, then)
            outcome.problems += _damage_unseen(spark, shop, job.folder, chance)
        finally:
            job.kill()
            writer.stop()
            shop.client.close()
        outcome.starts, outcome.ends = job.starts, job.ends
        outcome.batches = job.committed + 1
        outcome.events = len(_tokens(job.folder))
        outcome.writes, outcome.refused = writer.writes, writer.refused + faults.refused
    if not outcome.problems:
        shutil.rmtree(folder)
    return outcome


def _catch_up(shop: Shop, job: JobProcess, last: dict[str, Any]) -> None:
    """Insert a document, and wait until the job has read all writes and finished snapshots."""
    client = shop.client
    with client.start_session() as session:
        client[_DATABASE].orders.insert_one({**last, "customer": 1}, session=session)
        time = session.operation_time
    assert time is not None
    signals = Folder(job.folder.signals)

    def done() -> bool:
        job.keep_running()
        offset = job.folder.checkpoint.offset(job.committed)
        if any(e.extension == "json" for e in signals.listed("")):
            return False
        if offset.get("snapshots", {}).get("requests"):
            return False
        state = CurrentTable.existing(job.folder.table("current")).state
        if state.unread or state.lost:
            return False
        return key_of(Offset.of(offset).position) > key_of(AtTime(time))

    wait_for(done, "the job's reading of the last write", _COMMIT_SECONDS)


def _problems(spark: SparkSession, shop: Shop, folder: JobFolder, truth: str) -> list[str]:
    """Return how the tables differ from the collections: rows too many, missing or different.

    truth: the connection string of a server whose change stream has all events.
    """
    found = []
    for name, result in verify_job(spark, folder, shop.uri).items():
        if result.count or result.remark:
            found.append(f"verify of {name}: {result}")
    offset = _offset_of(folder)
    end = Offset.of(offset)
    scope = end.scope or Scope()
    rows = CurrentTable.existing(folder.table("current")).log.read(spark)
    table, collections = (
        {place: each for place, each in found.items() if scope.accepts(_DATABASE, place[0])}
        for found in (documents_in(rows), collections_of(shop))
    )
    if table != collections:
        keys = {key for key in {*table, *collections} if table.get(key) != collections.get(key)}
        found.append(f"the current table differs in {len(keys)} documents: {sorted(keys)[:10]}")
    tokens = Counter(_tokens(folder))
    found += [f"{token} is in bronze {n} times" for token, n in tokens.items() if n > 1]
    begin = min(tokens) if end.since is None else key_of(AtTime(end.since))
    tokens = Counter(token for token in tokens.elements() if token >= begin)
    client: Client
    with (
        pymongo.MongoClient(truth) as client,
        client[_DATABASE].watch(start_at_operation_time=shop.created) as events,
    ):
        told = set()
        deadline = Deadline(_COMMIT_SECONDS)
        while True:
            deadline.check("the last write in a plain stream", len(told))
            if (event := events.try_next()) is None:
                continue
            places = [event[each].get("coll", "") for each in ("ns", "to") if each in event]
            if any(scope.accepts(_DATABASE, each) for each in places):
                told.add(event["_id"]["_data"])
            if event.get("documentKey", {}).get("_id") == _LAST["_id"]:
                break
    told = {token for token in told if token >= begin}
    missing, extra = told - set(tokens), set(tokens) - told
    if missing or extra:
        found.append(
            f"bronze lacks {len(missing)} events of a plain stream, and has {len(extra)} more"
        )
    return found + _messages_missing(folder, begin) + _notified_twice(folder)


def _history_differs(
    spark: SparkSession, folder: JobFolder, time: Timestamp, then: dict[tuple[str, str], Any]
) -> list[str]:
    """Return how the documents at a time, as they are read and rebuilt, differ from ``then``."""
    rebuilt = rebuild_table(spark, folder, time, f"{folder.address}-restored")
    read = read_at(spark, folder.address, f"{time.time},{time.inc}")["current"]
    tables = {"read": read, "rebuilt": rebuilt.log.read(spark)}
    return [
        f"the {name} table is not what the collections were"
        for name, rows in tables.items()
        if documents_in(rows) != then
    ]


def _damage_unseen(
    spark: SparkSession, shop: Shop, folder: JobFolder, chance: random.Random
) -> list[str]:
    """Change a value or a row of a table at random, for `verify` to find, and undo that."""
    tables = {
        name: DeltaTable(folder.table(name)).to_pyarrow_table()
        for name in _TABLES
        if DeltaTable.is_deltatable(folder.table(name))
    }
    name, rows = chance.choice([each for each in tables.items() if each[1].num_rows])
    what, damaged = chance.choice([*damages(rows, chance)])
    write_deltalake(folder.table(name), damaged, mode="overwrite")
    seen = verify_job(spark, folder, shop.uri, [name])[name].count
    write_deltalake(folder.table(name), rows, mode="overwrite")
    return [] if seen else [f"verify does not find the damage to {name}: {what}"]


def _offset_of(folder: JobFolder) -> dict[str, Any]:
    last = folder.checkpoint.last_committed()
    assert last is not None
    return last.offset


def _messages_missing(folder: JobFolder, begin: str) -> list[str]:
    """What messages lacks of the changes in bronze, from a token on.

    A seek may replace a batch that only the first table has.
    """
    changes = (row["token"] for row in _rows(folder, "bronze", ["token", "op"]) if row["op"])
    messages = (
        row["token"] for row in _rows(folder, "messages", ["token", "index"]) if not row["index"]
    )
    expected, found = (
        Counter(token for token in tokens if token >= begin) for tokens in (changes, messages)
    )
    lacking, extra = (sum(each.values()) for each in (expected - found, found - expected))
    told = f"messages lacks {lacking} of the changes in bronze, and has {extra} more"
    return [told] if lacking or extra else []


def _notified_twice(folder: JobFolder) -> list[str]:
    kinds = Counter(
        (row["id"], row["type"])
        for row in _rows(folder, "notifications")
        if row["type"] in ("STARTED", "COMPLETED")
    )
    found = [
        f"{kind} of {name} is notified {n} times" for (name, kind), n in kinds.items() if n > 1
    ]
    begun = {name for name, kind in kinds if kind == "STARTED"}
    ended = {name for name, kind in kinds if kind == "COMPLETED"}
    return found + [f"the snapshot {name} has no end" for name in sorted(begun ^ ended)]


def _tokens(folder: JobFolder) -> list[str]:
    """The tokens of all events in bronze, without the rows of snapshots."""
    return [
        row["token"]
        for row in _rows(folder, "bronze", ["token", "operationType"])
        if row["operationType"] not in ("read", "snapshotEnd")
    ]


def _rows(folder: JobFolder, table: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]]
    rows = DeltaTable(folder.table(table)).to_pyarrow_table(columns=columns).to_pylist()
    return rows
