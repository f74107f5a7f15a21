"""One seed: a workload, and its messages: Debezium's, through mongos and router, and ours."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pymongo
from bson.timestamp import Timestamp

from spark_sink.debezium.options import MessageOptions
from tests.conformance.streams import next_tick, now
from tests.debezium import messages
from tests.debezium.comparison import differences
from tests.debezium.engine import PREFIX, DebeziumEngine, Message
from tests.debezium.workload import DONE, INCREMENTAL, SIGNALS, Workload
from tests.harness.clusters import RealCluster

_IMAGE = {"full_document": "whenAvailable"}
_LOOKUP = {"full_document": "updateLookup"}
_BEFORE = {"full_document_before_change": "whenAvailable"}
_MODES: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("change_streams", "lookup", {}),
    ("change_streams_with_pre_image", "lookup", _BEFORE),
    ("change_streams_update_full", "post_image", _IMAGE),
    ("change_streams_update_full_with_pre_image", "post_image", _IMAGE | _BEFORE),
    ("change_streams_update_full", "lookup", _LOOKUP),
)
"""Debezium's capture modes and kinds of full updates, with what they are for a driver."""
_OVERSIZE: tuple[dict[str, str], ...] = (
    {"cursor.oversize.handling.mode": "split"},
    {"cursor.oversize.handling.mode": "skip", "cursor.oversize.skip.threshold": "5000000"},
)


@dataclass
class Outcome:
    """What a seed has found: differences, and how many messages were compared."""

    seed: int
    messages: int = 0
    differences: list[str] = field(default_factory=list)


def run_seed(cluster: RealCluster, router: str, seed: int, steps: int) -> Outcome:
    """Run a seed on a cluster.

    Args:
        cluster: where the workload runs.
        router: the connection string of a router.
        seed: determines the workload and the options of the messages.
        steps: the number of steps of the workload after the snapshot.
    """
    chance, outcome = Random(seed), Outcome(seed)
    with pymongo.MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        workload = Workload(client, list(cluster.shards), chance, f"debezium{seed}")
        workload.prepare()
        _Seed(cluster, router, chance, workload, outcome).run(client, steps)
        for database in workload.databases:
            client.drop_database(database)
    return outcome


class _Seed:
    """A seed's options, and its phases."""

    def __init__(
        self,
        cluster: RealCluster,
        router: str,
        chance: Random,
        workload: Workload,
        outcome: Outcome,
    ) -> None:
        self._cluster = cluster
        self._router = router
        self._chance = chance
        self._workload = workload
        self._outcome = outcome
        mode, kind, self._images = _MODES[outcome.seed % len(_MODES)]
        self._looks_up = self._images == _LOOKUP
        self._large = len(self._images) > 1
        self._oversize = chance.choice(_OVERSIZE) if self._large else {}
        self._options, properties = _options(chance)
        self._properties = {
            **properties,
            **self._oversize,
            "capture.mode": mode,
            "capture.mode.full.update.type": kind,
            "filters.match.mode": "literal",
            "database.include.list": ",".join(workload.databases),
            "signal.data.collection": f"{workload.databases[0]}.{SIGNALS}",
            "incremental.snapshot.chunk.size": "10",
        }

    def run(self, client: pymongo.MongoClient[Any], steps: int) -> None:
        """Run all phases, and note what differs."""
        work, options, mongos = self._workload, self._options, self._cluster.mongos_uri
        work.run(steps // 4)
        documents = messages.of_documents(mongos, work.databases, options)
        with self._engine(mongos, {"snapshot.mode": "initial"}) as engine:
            snapshot = len(engine.messages_until(_is_last_of_snapshot))
            start = next_tick(now(client))
            work.run(steps // 2)
            if self._large:
                work.write_large()
            work.run(steps - steps // 2)
            work.finish()
            read = engine.messages_until(_is_done)
        self._compare("snapshot", read[:snapshot], documents, snapshot=True)
        stream = _until_done(read[snapshot:])
        if self._looks_up:  # documents were read before later writes
            stream = self._from(start, mongos)
        ours = messages.of_stream(
            self._router, work.databases, start, DONE, options, self._images, self._oversize
        )
        self._compare("ours", stream, _until_done(ours))
        self._compare("through the router", stream, self._from(start, self._router))
        self._outcome.messages = 2 * len(read)

    def _from(self, start: Timestamp, uri: str) -> list[Message]:
        """Return Debezium's messages from a time on; then compare an incremental snapshot."""
        work = self._workload
        with self._engine(uri, _no_snapshot(start)) as engine:
            read = engine.messages_until(_is_done)
            work.signal(self._chance.getrandbits(32))
            expected = messages.of_collection(
                uri, work.databases[0], INCREMENTAL, self._options, incremental=True
            )
            topic = self._options.topic(work.databases[0], INCREMENTAL)

            def incremental(found: list[Message]) -> list[Message]:
                return [
                    each
                    for each in found
                    if each.topic == topic and '"snapshot":"incremental"' in (each.value or "")
                ]

            everything = engine.messages_when(
                lambda found: len(incremental(found)) >= len(expected)
            )
        self._compare("incremental", incremental(everything), expected, snapshot=True)
        return _until_done(read)

    def _engine(self, uri: str, more: Mapping[str, str]) -> DebeziumEngine:
        return _Engine(uri, {**self._properties, **more})

    def _compare(
        self, what: str, one: list[Message], other: list[Message], *, snapshot: bool = False
    ) -> None:
        found = differences(one, other, snapshot=snapshot)
        self._outcome.differences += [f"{what}: {each}" for each in found]


class _Engine(DebeziumEngine):
    """An engine with a folder of its own."""

    def __init__(self, uri: str, properties: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="debezium-")
        super().__init__(uri, Path(self._folder.name), properties)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def _options(chance: Random) -> tuple[MessageOptions, dict[str, str]]:
    """Return options of messages, and the same as Debezium's properties."""
    options = MessageOptions(
        PREFIX,
        tombstones=chance.random() < 0.7,
        transactions=chance.random() < 0.7,
        delimiter=chance.choice((".", ".", "_", "-")),
        naming=chance.choice(("default", "default", "unicode")),
        transaction_topic=chance.choice(("transaction", "tx")),
        schemas=chance.random() < 0.3,
    )
    properties = {
        "tombstones.on.delete": str(options.tombstones).lower(),
        "provide.transaction.metadata": str(options.transactions).lower(),
        "topic.delimiter": options.delimiter,
        "topic.transaction": options.transaction_topic,
        "converter.schemas.enable": str(options.schemas).lower(),
    }
    if options.naming == "unicode":
        strategy = "io.debezium.schema.DefaultUnicodeTopicNamingStrategy"
        properties["topic.naming.strategy"] = strategy
    return options, properties


def _no_snapshot(start: Timestamp) -> dict[str, str]:
    at = str(start.time << 32 | start.inc)
    return {"snapshot.mode": "no_data", "capture.start.op.time": at}


def _is_last_of_snapshot(message: Message) -> bool:
    return message.value is not None and '"snapshot":"last"' in message.value


def _is_done(message: Message) -> bool:
    """Whether it is the workload's last event: no other topic ends so."""
    return message.topic.endswith(DONE)


def _until_done(read: list[Message]) -> list[Message]:
    """Return the messages before the workload's last event."""
    return read[: next(index for index, each in enumerate(read) if _is_done(each))]
