"""Messages of many events together are those of each by itself."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import Any

import bson
import pytest
from bson import Int64, ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from spark_sink.debezium.messages import Maker, Message
from spark_sink.debezium.options import MessageOptions
from spark_sink.events.heartbeats import Heartbeat
from tests.debezium import values

NOW = 1_800_000_000_123_456_789
_KINDS = ("insert", "insert", "update", "replace", "delete", "read")
_NUMBERS = count(1)


def test_messages_made_together_are_those_made_one_by_one() -> None:
    chance = Random(5)
    for case in range(8):
        options = MessageOptions(
            "p", tombstones=bool(case % 3), version=chance.choice(("3.6", "2.6"))
        )
        templates = [_template(chance) for _ in range(chance.randrange(1, 4))]
        events = [_event(chance, chance.choice(templates)) for _ in range(200)]
        events += [_odd_event(chance) for _ in range(20)]
        events.append(bytes(Heartbeat(Timestamp(1, 7)).event().raw))
        chance.shuffle(events)
        _compare(options, events)


@pytest.mark.parametrize("size", [0, 1, 30])
def test_few_events_are_messages_too(size: int) -> None:
    chance = Random(1)
    template = _template(chance)
    _compare(MessageOptions("p"), [_event(chance, template) for _ in range(size)])


def test_a_damaged_document_is_refused() -> None:
    fields = {"operationType": "insert", "clusterTime": Timestamp(5, 1), "ns": {"db": "d"}}
    event = bson.encode({**fields, "documentKey": {"_id": 1}, "fullDocument": {"a": "text"}})
    size = event.index(b"\x02a\0") + 3
    damaged = event[:size] + struct.pack("<i", 100) + event[size + 4 :]
    with pytest.raises(bson.errors.InvalidBSON):
        Maker(MessageOptions("p"), lambda: NOW).of_events([event] * 50 + [damaged])


def _compare(options: MessageOptions, events: list[bytes]) -> None:
    maker = Maker(options, lambda: NOW)
    expected = [
        (index, place, message)
        for index, event in enumerate(events)
        for _, place, message in _messages(maker, [event])
    ]
    assert _messages(maker, events) == expected


def _messages(maker: Maker, events: list[bytes]) -> list[tuple[int, int, Message]]:
    """Return messages, each after its event's index and its place among that event's messages."""
    rows, places, columns = maker.of_events(events)
    messages = map(Message, *(column.to_pylist() for column in columns))
    return list(zip(rows.tolist(), places.tolist(), messages, strict=True))


def _template(chance: Random) -> dict[str, Any]:
    """Return the kind of an event, and the types that the fields of its document have."""
    return {
        "kind": chance.choice(_KINDS),
        "fields": {name: chance.randrange(12) for name in chance.sample(values.NAMES, 5)},
        "key": chance.choice(("object id", "number", "any", "compound")),
        "transaction": chance.random() < 0.3,
        "incremental": chance.random() < 0.5,
        "databases": chance.choice((("d",), ("d", "ü"), tuple(map(str, range(40))))),
    }


def _value(chance: Random, kind: int) -> Any:
    """Return a value of a type, now and then one of another."""
    if chance.random() < 0.01:
        return values.value(chance)
    one_kind = {
        0: lambda: chance.choice(values.DOUBLES),
        1: lambda: round(chance.uniform(-1e4, 1e4), 2),
        2: lambda: float(chance.randrange(-100, 100)),
        3: lambda: chance.choice(values.TEXTS),
        4: lambda: f"plain {chance.random()}",
        5: lambda: chance.randrange(-(2**31), 2**31),
        6: lambda: Int64(chance.randrange(-(2**63), 2**63)),
        7: lambda: chance.random() < 0.5,
        8: lambda: bson.DatetimeMS(chance.choice(values.DATES)),
        9: lambda: [_value(chance, 3) for _ in range(_length(chance))],
        10: lambda: [{"a": _value(chance, 1), "b": [2**31]} for _ in range(_length(chance))],
        11: lambda: {"o": values.object_id(chance), "n": None, "u": bson.Binary(bytes(16), 4)},
    }  # fmt: skip
    return one_kind[kind]()


def _length(chance: Random) -> int:
    return chance.randrange(120 if chance.random() < 0.02 else 4)


def _event(chance: Random, template: dict[str, Any]) -> bytes:
    key: dict[str, Any] = {"_id": ObjectId(chance.randbytes(12))}
    if template["key"] == "number":
        key = {"_id": next(_NUMBERS)}
    elif template["key"] == "any":
        key = {"_id": values.identifier(chance, next(_NUMBERS))}
    elif template["key"] == "compound":
        key = {"shard": chance.choice(("a", 5)), "_id": _value(chance, 3)}
    document = {name: _value(chance, kind) for name, kind in template["fields"].items()}
    kind, wall = template["kind"], chance.choice((0, -1, 1_700_000_000_005))
    ns = {"db": chance.choice(template["databases"]), "coll": "c%"}
    event: dict[str, Any] = {"_id": {"_data": "82"}, "operationType": kind}
    event |= {"clusterTime": Timestamp(chance.randrange(2**32), chance.randrange(2**32))}
    event |= {"wallTime": bson.DatetimeMS(wall), "ns": ns, "documentKey": key}
    if kind == "read" and template["incremental"]:
        event["signal"] = {"type": "incremental"}
    if template["transaction"]:
        event |= {"lsid": {"id": bson.Binary(bytes(16), 4), "uid": b"u"}, "txnNumber": Int64(3)}
    if kind != "delete":
        event["fullDocument"] = document
    if kind in ("replace", "delete"):
        event["fullDocumentBeforeChange"] = chance.choice((None, document))
    if kind == "update":
        removed = ["x", 'y"'] if chance.random() < 0.2 else []
        cut = [{"field": "a.b", "newSize": 2}] if chance.random() < 0.2 else []
        description = {"updatedFields": document, "removedFields": removed, "truncatedArrays": cut}
        if chance.random() < 0.1:
            description["disambiguatedPaths"] = {"a.0": ["a", "0"]}
        event["updateDescription"] = description
    return bson.encode(event)


def _odd_event(chance: Random) -> bytes:
    """Return an insert of a document with values of any type."""
    document = values.document(chance, values.identifier(chance, next(_NUMBERS)), 1)
    fields = {
        "operationType": "insert",
        "clusterTime": Timestamp(5, 1),
        "wallTime": datetime(2024, 1, 1, tzinfo=UTC),
        "fullDocument": RawBSONDocument(document.raw),
        "ns": {"db": "d", "coll": "c"},
        "documentKey": {"_id": 1},
    }
    return bson.encode(fields)
