"""Values of Kafka Connect, which Debezium's transforms make of BSON, as JSON.

An ObjectId is its hex digits, a date or a timestamp milliseconds since 1970, binary data base64, a
decimal its text. Values on which Debezium's transforms fail are written as well: arrays of several
types unchanged, and values of types that Kafka Connect lacks as relaxed extended JSON.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from json.encoder import encode_basestring

from bson.decimal128 import Decimal128

from shard_client.bson.values import (
    ARRAY,
    BINARY,
    CODE,
    DATE,
    DECIMAL,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    OBJECT_ID,
    REGEX,
    STRING,
    TIMESTAMP,
)
from spark_sink.debezium.java_json import JavaJson
from spark_sink.events.slices import Slice, elements_of

_OLD_BINARY = 2
_JSON = JavaJson(relaxed=True, separator=",", plus=False)
Tree = dict[str, "Tree"] | list["Tree"] | str
"""A value: its JSON, or the values in it, by name or in order."""


@dataclass(frozen=True)
class ConnectValues:
    """Makes values of BSON; `arrays_are_documents` makes an array a document: `_0`, `_1`, …."""

    arrays_are_documents: bool = False

    def fields(self, document: Slice) -> dict[str, Tree]:
        """Return the fields of a document; none for any other type."""
        fields = document.fields().items()
        return {name.decode(errors="replace"): self.value(value) for name, value in fields}

    def value(self, field: Slice) -> Tree:
        """Return a value."""
        kind, data = field
        if kind == DOCUMENT:
            return self.fields(field)
        if kind == ARRAY:
            elements = [self.value(element) for _, element in elements_of(data)]
            if self.arrays_are_documents:
                return {f"_{index}": element for index, element in enumerate(elements)}
            return _alike(elements)
        text = text_in(field)
        if text is not None:
            return quoted(text)
        if kind in (INT32, INT64, DATE):
            return str(int.from_bytes(data, "little", signed=True))
        if kind == TIMESTAMP:
            return f"{int.from_bytes(data[4:], 'little')}000"
        if kind == BINARY:
            return f'"{base64.b64encode(data[9 if data[4] == _OLD_BINARY else 5 :]).decode()}"'
        if kind == REGEX:
            pattern, options, _ = (part.decode(errors="replace") for part in data.split(b"\0"))
            return {"regex": quoted(pattern), "options": quoted(options)}
        made = _JSON.value(kind, data)
        return made.partition(": ")[2][:-1] if kind == DOUBLE and made.startswith("{") else made


def text_in(field: Slice) -> str | None:
    """Return a value whose type is a text in Kafka Connect; None for any other type."""
    kind, data = field
    if kind in (STRING, CODE):
        return data[4:-1].decode(errors="replace")
    if kind == OBJECT_ID:
        return data.hex()
    return str(Decimal128.from_bid(data)) if kind == DECIMAL else None


def _alike(elements: list[Tree]) -> list[Tree]:
    """Return an array's elements; each document gets the fields of all, null if it lacks them."""
    documents = [element for element in elements if isinstance(element, dict)]
    names = dict.fromkeys(name for document in documents for name in document)
    filled: list[dict[str, Tree]] = [
        {name: document.get(name, "null") for name in names} for document in documents
    ]
    for name in names:
        columns = _alike([document[name] for document in filled])
        for document, value in zip(filled, columns, strict=True):
            document[name] = value
    rest = iter(filled)
    return [next(rest) if isinstance(element, dict) else element for element in elements]


def text_of(tree: Tree) -> str:
    """Return a value's JSON."""
    if isinstance(tree, str):
        return tree
    if isinstance(tree, list):
        return f"[{','.join(map(text_of, tree))}]"
    return f"{{{','.join(f'{quoted(name)}:{text_of(value)}' for name, value in tree.items())}}}"


def quoted(text: str) -> str:
    """Return a string as Kafka Connect's JSON converter writes it, with quotes."""
    if text.isascii() and text.isprintable():
        return encode_basestring(text)
    parts = (_escaped(c) if c < " " or c > "\uffff" else encode_basestring(c)[1:-1] for c in text)
    return f'"{"".join(parts)}"'


def _escaped(character: str) -> str:
    short = encode_basestring(character)[1:-1]
    if character < " ":
        return short if len(short) == 2 else f"\\u{ord(character):04X}"
    units = character.encode("utf-16-be").hex().upper()
    return f"\\u{units[:4]}\\u{units[4:]}"
