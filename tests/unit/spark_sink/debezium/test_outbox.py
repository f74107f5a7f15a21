"""The messages of an outbox's documents; tests/debezium compares them with Debezium's transform."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from spark_sink.debezium.messages import Maker
from spark_sink.debezium.options import MessageOptions
from spark_sink.debezium.outbox import Outbox
from spark_sink.errors import OptionError, StreamError

EVENT = {"_id": 1, "aggregatetype": "order", "aggregateid": "a7", "type": "Made", "payload": "p"}


def sent(
    document: dict[str, Any] | None, properties: dict[str, str], kind: str = "insert"
) -> list[tuple[str, str, str | None]]:
    """Topic, key and value of the messages of one event."""
    event = {
        "_id": {"_data": "82"},
        "operationType": kind,
        "clusterTime": Timestamp(5, 1),
        **({} if document is None else {"fullDocument": document}),
        "ns": {"db": "shop", "coll": "outbox"},
        "documentKey": {"_id": 1},
    }
    options = MessageOptions("p", transform=Outbox.parse(properties))
    return [each[:3] for each in Maker(options, lambda: 0).of_event(bson.encode(event))]


def test_a_document_names_its_topic_its_key_and_its_payload() -> None:
    assert sent(EVENT, {}) == [("outbox.event.order", '"a7"', '"p"')]
    payload = {**EVENT, "payload": {"a": 1}}
    lines = r'"{\n  \"a\": {\n    \"$numberInt\": \"1\"\n  }\n}"'
    assert sent(payload, {}) == [("outbox.event.order", '"a7"', lines)]
    expanded = {"collection.expand.json.payload": "true"}
    assert sent(payload, expanded) == [("outbox.event.order", '"a7"', '{"a":1}')]
    named = {"collection.field.event.key": "_id", "collection.field.payload": "type"}
    assert sent(
        EVENT, {**named, "route.topic.replacement": "$1.x", "route.topic.regex": "(o)rder"}
    ) == [("o.x", "1", '"Made"')]
    added = {"collection.fields.additional.placement": "type:envelope:kind,none:envelope"}
    assert sent(EVENT, added)[0][2] == '{"payload":"p","kind":"Made","none":null}'


def test_an_empty_payload_is_a_tombstone_if_wanted() -> None:
    wanted = {"route.tombstone.on.empty.payload": "true"}
    for payload in (None, "", " "):
        assert sent({**EVENT, "payload": payload}, wanted)[0][2] is None
        assert sent({**EVENT, "payload": payload}, {})[0][2] is not None


def test_only_inserts_are_sent() -> None:
    fatal = {"collection.op.invalid.behavior": "fatal"}
    assert sent(EVENT, {}, "update") == sent(EVENT, {}, "replace") == []
    assert sent(None, fatal, "delete") == sent(None, fatal, "update") == []
    with pytest.raises(StreamError, match="was updated: to leave such events out, set"):
        sent(EVENT, fatal, "update")


def test_a_document_that_is_no_event_stops_the_query() -> None:
    for name in ("payload", "aggregatetype"):
        with pytest.raises(StreamError, match=f"needs .*{name}"):
            sent({each: EVENT[each] for each in EVENT if each != name}, {})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"route.by": "x"}, "unknown option 'route.by' of outbox"),
        ({"route.topic.regex": "("}, "is not a regular expression"),
        ({"collection.fields.additional.placement": "type:header"}, "only envelope is possible"),
    ],
)
def test_properties_that_are_not_made_are_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Outbox.parse(properties)
