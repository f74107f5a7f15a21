"""Debezium's transform MongoEventRouter: the documents of an outbox as messages of own topics.

An application inserts a document into its outbox with the changes that it tells of, in one
transaction. The message has the document's payload, a key and a topic that the document names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_sink.debezium.connect_values import ConnectValues, Tree, text_of
from spark_sink.debezium.java_json import JavaJson
from spark_sink.debezium.options import quoted
from spark_sink.errors import StreamError
from spark_sink.events.slices import DOCUMENT, STRING, Slice, fields_of
from spark_sink.options import values
from spark_sink.options.names import canonical, fields_in, option, option_names
from spark_sink.rows.extended_json import canonical_json

_OF = " of outbox"
_VALUES = ConnectValues()
_JAVA = JavaJson(relaxed=False, separator=",")
_AGGREGATE = "aggregateid"


def _indented(document: Slice) -> str:
    """Return a document as canonical extended JSON on several lines, as Java's driver writes it."""
    found = json.loads(canonical_json(document) or "null", object_hook=_with_java_number)
    return json.dumps(found, indent=2, ensure_ascii=False)


def _with_java_number(found: dict[str, Any]) -> dict[str, Any]:
    text = found.get("$numberDouble")
    if isinstance(text, str) and text not in ("NaN", "Infinity", "-Infinity"):
        return {"$numberDouble": _JAVA.double(float(text))}
    return found


def _regex(text: str) -> str:
    found = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", text)
    try:
        re.compile(found)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return found


def _replacement(text: str) -> str:
    literal = text.replace("\\", "\\\\")
    return re.sub(r"\$\{(\w+)\}|\$(\d)", lambda found: rf"\g<{found[1] or found[2]}>", literal)


def _added(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for each in values.names(text):
        name, _, rest = each.partition(":")
        placement, _, alias = rest.partition(":")
        if placement != "envelope":
            raise ValueError(
                f"{each!r}: only envelope is possible, as in {name}:envelope, since messages have "
                "no headers and no partition here"
            )
        found.append((name, alias or name))
    return tuple(found)


@dataclass(frozen=True)
class Outbox:
    """The transform's properties, by their names."""

    key_field: str | None = option("collection.field.event.key", values.some_text, None)
    payload: str = option("collection.field.payload", values.some_text, "payload")
    expands: bool = option("collection.expand.json.payload", values.boolean, False)
    added: tuple[tuple[str, str], ...] = option(
        "collection.fields.additional.placement", _added, ()
    )
    unexpected: str = option(
        "collection.op.invalid.behavior", values.one_of("warn", "error", "fatal"), "warn"
    )
    route_by: str = option("route.by.field", values.some_text, "aggregatetype")
    regex: str = option("route.topic.regex", _regex, "(?P<routedByValue>.*)")
    replacement: str = option(
        "route.topic.replacement", _replacement, r"outbox.event.\g<routedByValue>"
    )
    tombstones: bool = option("route.tombstone.on.empty.payload", values.boolean, False)

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> Outbox:
        """Return the properties, validated. Raises OptionError for others, too."""
        given = canonical(properties, option_names(cls), of=_OF)
        return cls(**fields_in(cls, given, _OF))

    def messages(
        self, topic: str, fields: Mapping[bytes, Slice], value: str, *, tombstones: bool
    ) -> Iterator[tuple[str, str, str | None]]:
        """Return topic, key and value of the message of an event, if it has one.

        Raises StreamError for a document that is no outbox event, and for an update if those are
        fatal.
        """
        full = fields.get(b"fullDocument")
        operation = fields[b"operationType"].text()
        if operation == "delete" or full is None or full.kind != DOCUMENT:
            return
        if operation in ("update", "replace"):
            if self.unexpected == "fatal":
                raise StreamError(
                    f"a document of {topic}, an outbox, was updated: to leave such events out, "
                    "set collection.op.invalid.behavior to warn"
                )
            return
        document = fields_of(full.value)
        routed = document.get(self.route_by.encode())
        if self.payload.encode() not in document or routed is None or routed.kind != STRING:
            raise StreamError(
                f"a document of {topic} is no event of an outbox: it needs {self.payload!r}, and "
                f"{self.route_by!r} as a text. Correct the options of outbox, or the scope"
            )
        name = routed.text() or ""
        found = re.fullmatch(self.regex, name, re.ASCII)
        key = document.get((self.key_field or _AGGREGATE).encode())
        if key is None:
            key = document.get(_AGGREGATE.encode())
        yield (
            name if found is None else found.expand(self.replacement),
            "null" if key is None else text_of(_VALUES.value(key)),
            self._value(document),
        )

    def _value(self, document: Mapping[bytes, Slice]) -> str | None:
        payload = document[self.payload.encode()]
        tree: Tree = _VALUES.value(payload)
        if payload.kind == DOCUMENT and not self.expands:
            tree = quoted(_indented(payload))
        text = payload.text()
        if self.tombstones and (tree == "null" or (text is not None and not text.strip())):
            return None
        if not self.added:
            return text_of(tree)
        envelope = {"payload": tree}
        for name, alias in self.added:
            each = document.get(name.encode())
            envelope[alias] = "null" if each is None else _VALUES.value(each)
        return text_of(envelope)
