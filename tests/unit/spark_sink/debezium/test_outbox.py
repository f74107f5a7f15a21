"""The messages of an outbox's documents; tests/debezium compares them with Debezium's transform."""

import os
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.code import Code

from spark_sink.debezium.message_batches import Messages
from spark_sink.debezium.messages import MessageMaker
from spark_sink.debezium.options import MessageOptions
from spark_sink.debezium.outbox import Outbox
from spark_sink.errors import OptionError, StreamError
from spark_sink.rows.arrow_types import rows_in
from spark_sink.rows.layouts import Values
from tests.unit.spark_sink.debezium.made_messages import event

EVENT = {"_id": 1, "aggregatetype": "order", "aggregateid": "a7", "type": "Made", "payload": "p"}


def sent(
    document: dict[str, Any] | None, properties: dict[str, str], kind: str = "insert"
) -> list[tuple[str, str, str | None]]:
    """Topic, key and value of the messages of one event."""
    options = MessageOptions.of({"prefix": "p", "outbox": properties})
    fields = {} if document is None else {"fullDocument": document}
    events = Values.of([event(kind, 1, **fields)])
    made = MessageMaker(options, lambda: 0).of_events(events)
    return list(rows_in(made.select(["topic", "key", "value"])))


def test_a_document_names_its_topic_its_key_and_its_payload() -> None:
    assert sent(EVENT, {}) == [("outbox.event.order", '"a7"', '"p"')]
    payload = {**EVENT, "payload": {"a": 1}}
    lines = r'"{\n  \"a\": {\n    \"$numberInt\": \"1\"\n  }\n}"'
    assert sent(payload, {}) == [("outbox.event.order", '"a7"', lines)]
    expanded = {"collection.expand.json.payload": "true"}
    assert sent(payload, expanded) == [("outbox.event.order", '"a7"', '{"a":1}')]
    named = {"collection.field.event.key": "_id", "collection.field.event.payload": "type"}
    assert sent(
        EVENT, {**named, "route.topic.replacement": "$1.x", "route.topic.regex": "(o)rder"}
    ) == [("o.x", "1", '"Made"')]
    added = {"collection.fields.additional.placement": "type:envelope:kind,none:envelope"}
    assert sent({**EVENT, "none": None}, added)[0][2] == '{"payload":"p","kind":"Made","none":null}'
    assert sent({**EVENT, "aggregatetype": bson.ObjectId(b"a" * 12)}, {})[0][0][-6:] == "616161"


def test_a_payload_on_several_lines_has_the_escapes_of_javas_driver() -> None:
    payload = {**EVENT, "payload": {"é😀": "\x7f\u2028"}}
    lines = r'"{\n  \"é\\ud83d\\ude00\": \"\\u007f\\u2028\"\n}"'
    assert sent(payload, {}) == [("outbox.event.order", '"a7"', lines)]


def test_a_topic_is_made_of_the_first_match_as_in_java() -> None:
    for regex, replacement, topic in (
        ("(.*?)(er)?", "t.$1.x", "t..xorder"),
        ("o|order", "t", "trder"),
        (r"\p{Alpha}+", r"a\$1", "a$1"),
        ("x", "t", "order"),
    ):
        given = {"route.topic.regex": regex, "route.topic.replacement": replacement}
        assert sent(EVENT, given)[0][0] == topic


def test_an_empty_payload_is_a_tombstone_if_wanted() -> None:
    wanted = {"route.tombstone.on.empty.payload": "true"}
    for payload in ("\xa0", "\u2003", Code("x")):
        assert sent({**EVENT, "payload": payload}, wanted)[0][2] is not None
    for payload in (None, "", " ", "\0\x1f", Code("")):
        assert sent({**EVENT, "payload": payload}, wanted)[0][2] is None
        assert sent({**EVENT, "payload": payload}, {})[0][2] is not None


def test_only_inserts_are_sent() -> None:
    fatal = {"collection.op.invalid.behavior": "fatal"}
    assert sent(EVENT, {}, "update") == sent(EVENT, {}, "replace") == []
    assert sent(None, fatal, "delete") == sent(None, fatal, "update") == []
    with pytest.raises(StreamError, match="was updated: to leave such events out, set"):
        sent(EVENT, fatal, "update")


def test_a_document_that_is_no_event_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    added = {"collection.fields.additional.placement": "type:envelope"}
    for name in ("payload", "aggregatetype", "aggregateid", "type"):
        with pytest.raises(StreamError, match=f"document 1 of .*it has no {name}"):
            sent({each: EVENT[each] for each in EVENT if each != name}, added)
    row = pa.RecordBatch.from_pydict({"event": [event("insert", 1, fullDocument={"_id": 1})]})
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(StreamError, match="is no event of an outbox"):
        list(Messages(MessageOptions("p", outbox=Outbox()))([row]))
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
    with pytest.raises(StreamError, match="aggregatetype as a text"):
        sent({**EVENT, "aggregatetype": 5}, {})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"route.by": "x"}, "unknown option 'route.by' of outbox"),
        ({"route.topic.regex": "("}, "is not a regular expression"),
        ({"route.topic.regex": "[a-z&&[^b]]"}, "intersection of classes"),
        ({"route.topic.regex": "(.*)"}, "has a group .* not have: unknown group name"),
        ({"route.topic.replacement": "x.$2"}, "has a group .* not have: invalid group reference 2"),
        ({"route.topic.replacement": "x$"}, "without a group's number"),
        ({"collection.fields.additional.placement": "type:header"}, "only envelope is possible"),
    ],
)
def test_properties_that_are_not_made_are_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        MessageOptions.of({"prefix": "p", "outbox": properties})
