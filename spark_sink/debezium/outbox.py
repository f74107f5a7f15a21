"""Debezium's transform MongoEventRouter: the documents of an outbox become messages.

In one transaction an application changes its data and inserts a document, which announces the
change, into its outbox. The message has the document's payload; the document names key and topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shard_client.bson.values import DOCUMENT
from spark_sink.debezium.connect_values import ConnectValues, Tree, quoted, text_in, text_of
from spark_sink.debezium.java_json import JavaJson, escaped
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.slices import NOTHING, Slice
from spark_sink.options import parsers
from spark_sink.options.declared import option
from spark_sink.options.java_patterns import compiled
from spark_sink.rows.extended_json import canonical_json

_VALUES = ConnectValues()
_JAVA = JavaJson(relaxed=False, separator=",")
_BLANK = "".join(map(chr, range(0x21)))
"""The characters that Java trims."""
_REFERENCE = re.compile(
    r"\\(?P<literal>.) | \$\{(?P<name>[A-Za-z]\w*)\} | \$(?P<number>\d) | (?P<other>[$\\])",
    re.VERBOSE | re.DOTALL,
)
"""The parts of a replacement of Java's that are not literal."""


def _indented(document: Slice) -> str:
    """Return a document as canonical extended JSON on several lines, as Java's driver writes it."""
    parsed = json.loads(canonical_json(document), object_hook=_with_java_number)
    return escaped(json.dumps(parsed, indent=2, ensure_ascii=False))


def _with_java_number(document: dict[str, Any]) -> dict[str, Any]:
    text = document.get("$numberDouble")
    if isinstance(text, str) and text not in ("NaN", "Infinity", "-Infinity"):
        return {"$numberDouble": _JAVA.double(float(text))}
    return document


def _regex(text: str) -> str:
    return compiled(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", text)).pattern


def _replacement(text: str) -> str:
    """Translate a replacement for Java's regular expressions into Python's form."""

    def translated(found: re.Match[str]) -> str:
        if found["other"]:
            raise ValueError(
                f"{text!r} has {found[0]!r} without a group's number or ${{name}}; as a character "
                f"it is {chr(92)}{found[0]}"
            )
        literal: str = found["literal"]
        return (
            literal.replace("\\", r"\\") if literal else rf"\g<{found['name'] or found['number']}>"
        )

    return _REFERENCE.sub(translated, text)


def _added(text: str) -> tuple[tuple[str, str], ...]:
    fields = []
    for entry in parsers.names(text):
        name, _, rest = entry.partition(":")
        placement, _, alias = rest.partition(":")
        if placement != "envelope":
            raise ValueError(
                f"{entry!r}: only envelope is possible, as in {name}:envelope, since messages have "
                "no headers and no partition here"
            )
        fields.append((name, alias or name))
    return tuple(fields)


@dataclass(frozen=True)
class Outbox:
    """The transform's properties, by their names."""

    key_field: str = option("collection.field.event.key", parsers.some_text, "aggregateid")
    payload: str = option("collection.field.event.payload", parsers.some_text, "payload")
    expands: bool = option("collection.expand.json.payload", parsers.boolean, False)
    added: tuple[tuple[str, str], ...] = option(
        "collection.fields.additional.placement", _added, ()
    )
    unexpected: str = option(
        "collection.op.invalid.behavior", parsers.one_of("warn", "error", "fatal"), "warn"
    )
    route_by: str = option("route.by.field", parsers.some_text, "aggregatetype")
    regex: str = option("route.topic.regex", _regex, "(?P<routedByValue>.*)")
    replacement: str = option(
        "route.topic.replacement", _replacement, r"outbox.event.\g<routedByValue>"
    )
    tombstones: bool = option("route.tombstone.on.empty.payload", parsers.boolean, False)

    def __post_init__(self) -> None:
        try:
            re.sub(f"{self.regex}|", self.replacement, "")
        except (re.error, IndexError) as error:
            raise OptionError(
                "option 'route.topic.replacement' of outbox has a group that the option "
                f"'route.topic.regex' does not have: {error}"
            ) from None

    def messages(
        self, topic: str, fields: Mapping[bytes, Slice], value: str, *, tombstones: bool
    ) -> Iterator[tuple[str, str, str | None]]:
        """Return topic, key and value of the message of an event, if it has one.

        Raises StreamError for a document that is no outbox event, and for an update if those are
        fatal.
        """
        full = fields.get(b"fullDocument", NOTHING)
        operation = fields[b"operationType"].text()
        if operation == "delete" or full.kind != DOCUMENT:
            return
        if operation in ("update", "replace"):
            if self.unexpected == "fatal":
                raise StreamError(
                    f"a document of {topic}, an outbox, was updated: to leave such events out, "
                    "set collection.op.invalid.behavior to warn"
                )
            return
        document = full.fields()
        needed = [self.payload, self.key_field, self.route_by, *(name for name, _ in self.added)]
        missing = [name for name in needed if name.encode() not in document]
        name = None if missing else text_in(document[self.route_by.encode()])
        if name is None:
            key = text_of(_VALUES.value(document[b"_id"])) if b"_id" in document else "null"
            raise StreamError(
                f"the document {key} of {topic} is no event of an outbox: it needs the fields "
                f"{', '.join(needed)}, and {self.route_by} as a text. Correct the options of "
                "outbox, or leave the document out with the option pipeline",
                f"it has no {', '.join(missing)}" if missing else None,
            )
        matches = re.fullmatch(self.regex, name, re.ASCII)
        yield (
            re.sub(self.regex, self.replacement, name, count=1, flags=re.ASCII)
            if matches
            else name,
            text_of(_VALUES.value(document[self.key_field.encode()])),
            self._value(document),
        )

    def _value(self, document: Mapping[bytes, Slice]) -> str | None:
        payload = document[self.payload.encode()]
        tree: Tree = _VALUES.value(payload)
        if payload.kind == DOCUMENT and not self.expands:
            tree = quoted(_indented(payload))
        text = text_in(payload)
        if self.tombstones and (tree == "null" or (text is not None and not text.strip(_BLANK))):
            return None
        if not self.added:
            return text_of(tree)
        added = {alias: _VALUES.value(document[name.encode()]) for name, alias in self.added}
        return text_of({"payload": tree, **added})
