"""Debezium's transforms of messages beside ours: the documents alone, and the outbox."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pymongo
import pytest
from bson import Binary, Code, Decimal128, Int64, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp

from spark_sink.debezium.options import MessageOptions
from tests.debezium import messages
from tests.debezium.engine import PREFIX, DebeziumEngine, Message, reason_to_skip
from tests.debezium.workload import DONE
from tests.harness.clusters import start_real_cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("debezium")]

DATABASE = "transforms"
OUTBOXES = TEXTS, _ = "texts", "outbox"
ROUTER = "io.debezium.connector.mongodb.transforms.outbox.MongoEventRouter"
UNWRAP = "io.debezium.connector.mongodb.transforms.ExtractNewDocumentState"
NAMES = ("a", "b", "two words", "é😀", 'q"', "$x", "dot.ted")
SIMPLE: tuple[Any, ...] = (
    'a"é😀\0\x7f', "", 5, -(2**31), Int64(2**40), Int64(-1), 1e20, 1.5, 1e-7, -0.0, float("nan"),
    float("-inf"), Binary(b"\0\xffabc", 0), Binary(b"x" * 16, 4), Binary(b"ab", 2), True,
    ObjectId("64b64c3f5f1b2a0001020304"), DatetimeMS(1_577_836_800_123), DatetimeMS(-5),
    DatetimeMS(253_402_300_800_000), Regex("a/b", "ix"), Code("f()"), Decimal128("1.10E+5"),
    Decimal128("NaN"), Timestamp(1_600_000_000, 3),
)  # fmt: skip
"""Values of all types that the transform can convert."""
ELEMENTS = [each for each in SIMPLE if not isinstance(each, Regex)]
"""Those that it can convert in arrays."""


@dataclass
class Worked:
    """A cluster after a workload."""

    uri: str
    start: Timestamp


def value(chance: Random, depth: int = 2) -> Any:
    match chance.randrange(8 if depth else 4):
        case 4:
            return None
        case 5:
            return {name: value(chance, depth - 1) for name in chance.sample(NAMES, 2)}
        case 6:
            return [chance.choice(ELEMENTS)] * chance.randrange(4)
        case 7:
            each = chance.choice(ELEMENTS)
            documents: list[Any] = [{"n": each}, {"m": None, "n": each}, {"p": {"q": each}}]
            return documents[: chance.randrange(4)]
        case _:
            return chance.choice(SIMPLE)


def work(database: pymongo.database.Database[Any]) -> None:
    """Changes of all kinds, with images in one of two collections."""
    chance = Random(1)
    images = {"changeStreamPreAndPostImages": {"enabled": True}}
    database.create_collection("images", **images)  # type: ignore[arg-type]
    for name in ("images", "plain"):
        collection = database[name]
        for number, each in enumerate(SIMPLE):
            # Connect has no keys of these types, or two of these are equal.
            odd = isinstance(each, Regex) or each != each or isinstance(each, Decimal128)
            collection.insert_one({"_id": number if odd else each, "v": each})
        for number in range(100, 160):
            collection.insert_one({"_id": number, "v": value(chance), "n": {"m": value(chance)}})
            collection.update_one({"_id": number}, {"$set": {"n.m": value(chance), "w": None}})
        collection.insert_one({"_id": {"k": ObjectId(), "l": 1}, "id": 7, "empty": {}, "list": []})
        one = {"_id": "one"}
        collection.insert_one({**one, "list": [1, 2, 3], "d": {"e": {"f": 1}}})
        collection.update_one(one, {"$set": {"d.e.f": 2, "list.1": 5}})
        collection.update_one(one, [{"$set": {"list": {"$slice": ["$list", 1]}}}])
        collection.update_one(one, {"$unset": {"d": 1}})
        collection.replace_one(one, {"z": 1})
        collection.delete_one(one)
        two = {"_id": "two"}
        collection.insert_one({**two, "a": 1, "b": {"c": 2, "d": 3}, "list": [1, 2, 3], "f": None})
        collection.update_one(two, {"$unset": {"b.c": "", "f": ""}})
        collection.update_one(two, {"$rename": {"a": "b.a"}, "$set": {"dot": None}})
        collection.update_one(two, {"$rename": {"b": "list"}})
        collection.update_one(two, {"$unset": {"list": "", "dot": ""}})
        three = {"_id": "three"}
        collection.insert_one(
            {**three, "a": {"b": 1, "c": {"d": 2}}, "rows": [{"n": 1, "m": 2}, {"n": 3}]}
        )
        collection.update_one(three, {"$unset": {"rows.0.m": "", "a.c.d": ""}})
        collection.update_one(three, {"$rename": {"a.b": "b", "a.c": "c.d"}})
        collection.update_one(three, [{"$unset": ["b", "rows"]}, {"$set": {"c.e": 4}}])
        collection.update_one(three, {"$unset": {"nothing": ""}})
        collection.update_one(three, {"$unset": {"a": "", "c": ""}})
    database[DONE].insert_one({"_id": 1})


def send(database: pymongo.database.Database[Any], *, texts: bool) -> None:
    """Documents of an outbox, with ids, keys and payloads of all kinds, and what is left out.

    With `texts` all payloads are texts: Debezium has one schema for all values with more fields.
    """
    outbox = database.outbox
    document = {"a": 1, "b": {"c": [1.5, 1e20], "d": ["é😀\x7f"], "e": {}, "f": Int64(2)}}
    for number, each in enumerate((*SIMPLE, None, document, {}, "  ", "\xa0", "\0", [1, 2])):
        event = {"_id": number, "aggregatetype": f"kind-{number % 3}", "aggregateid": f"a{number}"}
        payload = str(number) if texts else each
        outbox.insert_one({**event, "type": "Made", "payload": payload, "version": 2, "who": "é"})
    for key in (5, ObjectId("64b64c3f5f1b2a0001020304"), Int64(2**40), 1.5, True, {"a": "b"}):
        event = {"_id": ObjectId(), "aggregatetype": "keys", "aggregateid": key, "type": "Made"}
        outbox.insert_one({**event, "payload": "p", "version": 1, "who": 'q"'})
    outbox.update_one({"_id": 1}, {"$set": {"type": "Changed"}})
    outbox.replace_one({"_id": 2}, {"aggregatetype": "kind-9", "aggregateid": "x", "payload": "y"})
    outbox.delete_one({"_id": 3})
    last = {"_id": "z", "aggregatetype": DONE, "aggregateid": "z", "payload": "z"}
    database[DONE].insert_one({**last, "type": "Last", "version": 1, "who": "z"})


@pytest.fixture(scope="module")
def worked() -> Iterator[Worked]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with (
        start_real_cluster(1, noop_interval=1) as cluster,
        pymongo.MongoClient[dict[str, Any]](cluster.mongos_uri) as client,
    ):
        time = client.admin.command("ping")["$clusterTime"]["clusterTime"]
        work(client[DATABASE])
        for name in OUTBOXES:
            send(client[name], texts=name == TEXTS)
        yield Worked(cluster.mongos_uri, Timestamp(time.time, time.inc + 1))


def of_debezium(
    worked: Worked, properties: Mapping[str, str], database: str = DATABASE
) -> list[Message]:
    """The engine's messages, up to the last change."""
    source = {
        "snapshot.mode": "no_data",
        "capture.start.op.time": str(worked.start.time << 32 | worked.start.inc),
        "database.include.list": database,
        "filters.match.mode": "literal",
    }
    with (
        tempfile.TemporaryDirectory(prefix="debezium-") as folder,
        DebeziumEngine(worked.uri, Path(folder), {**source, **properties}) as engine,
    ):
        received = engine.messages_until(lambda each: each.topic.endswith(DONE))
    return [each for each in received if not each.topic.endswith(DONE)]


@pytest.mark.parametrize(
    ("properties", "images", "tombstones"),
    [
        ({}, {}, True),
        ({"delete.tombstone.handling.mode": "drop", "add.fields": "op:o,source.db,ord"}, {}, True),
        (
            {"delete.tombstone.handling.mode": "rewrite", "add.fields": "op,collection,wallTime"},
            {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable"},
            True,
        ),
        (
            {
                "delete.tombstone.handling.mode": "rewrite-with-tombstone",
                "flatten.struct": "true",
                "array.encoding": "document",
                "add.fields": "op",
                "add.fields.prefix": "m.",
            },
            {},
            True,
        ),
        (
            {"flatten.struct": "true", "flatten.struct.delimiter": "-"},
            {"full_document": "updateLookup"},
            False,
        ),
        ({"delete.tombstone.handling.mode": "delete-to-tombstone"}, {}, False),
        ({"delete.tombstone.handling.mode": "delete-to-tombstone"}, {}, True),
    ],
    ids=str,
)
def test_unwrapped_messages_are_those_of_debezium(
    worked: Worked, properties: dict[str, str], images: dict[str, str], tombstones: bool
) -> None:
    mode = {
        "": ("change_streams", "lookup"),
        "whenAvailable": ("change_streams_update_full_with_pre_image", "post_image"),
        "updateLookup": ("change_streams_update_full", "lookup"),
    }[images.get("full_document", "")]
    given = {
        "capture.mode": mode[0],
        "capture.mode.full.update.type": mode[1],
        "tombstones.on.delete": str(tombstones).lower(),
        "transforms": "unwrap",
        "transforms.unwrap.type": UNWRAP,
        **{f"transforms.unwrap.{name}": text for name, text in properties.items()},
    }
    options = MessageOptions.of({"prefix": PREFIX, "tombstones": tombstones, "unwrap": properties})
    ours = messages.of_stream(worked.uri, [DATABASE], worked.start, DONE, options, images, {})
    theirs = of_debezium(worked, given)
    assert len(theirs) > 250
    for one, other in zip(theirs, ours, strict=False):
        assert one == other
    assert len(theirs) == len(ours) - 1  # ours has the last change


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"collection.expand.json.payload": "true", "route.tombstone.on.empty.payload": "true"},
        {
            "collection.field.event.payload": "type",
            "collection.fields.additional.placement": "version:envelope,who:envelope:by",
            "route.topic.regex": "(?<kind>kind|k\\p{Lower}+)-?(.*)",
            "route.topic.replacement": "sent.${kind}.$2",
        },
    ],
    ids=str,
)
def test_messages_of_an_outbox_are_those_of_debezium(
    worked: Worked, properties: dict[str, str]
) -> None:
    given = {
        "transforms": "outbox",
        "transforms.outbox.type": ROUTER,
        **{f"transforms.outbox.{name}": text for name, text in properties.items()},
    }
    options = MessageOptions.of({"prefix": PREFIX, "outbox": properties})
    database = OUTBOXES["collection.fields.additional.placement" not in properties]
    ours = messages.of_stream(worked.uri, [database], worked.start, DONE, options, {}, {})
    theirs = of_debezium(worked, given, database)
    assert len(theirs) > 30
    for one, other in zip(theirs, ours, strict=False):
        assert one == other
    assert len(theirs) == len(ours) - 1  # ours has the last one
