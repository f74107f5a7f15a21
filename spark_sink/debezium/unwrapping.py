"""Debezium's transform ExtractNewDocumentState: documents themselves as the values of messages.

Values have the types of Kafka Connect, as its JSON converter writes them: an ObjectId is its hex
digits, a date or a timestamp milliseconds since 1970, binary data base64, a decimal its text. What
the transform fails on is written instead of lost: arrays of several types as they are, and values
of types that Kafka Connect does not have as relaxed extended JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bson.decimal128 import Decimal128

from spark_sink.debezium.java_json import OBJECT_ID, JavaJson
from spark_sink.debezium.options import quoted
from spark_sink.debezium.schemas import SOURCE_FIELDS
from spark_sink.events.slices import (
    ARRAY,
    BINARY,
    DATE,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    Slice,
    fields_of,
)
from spark_sink.options import values
from spark_sink.options.names import canonical, fields_in, option, option_names

_OF = " of unwrap"
_REGEX, _CODE, _DECIMAL = 0x0B, 0x0D, 0x13
_OLD_BINARY = 2
_ENVELOPE = ("op", "ts_ms")
_JSON = JavaJson(relaxed=True, separator=",", plus=False)
Tree = dict[str, "Tree"] | list["Tree"] | str
"""A value: its JSON, or the values in it, by name or in order."""


@dataclass(frozen=True)
class AddedField:
    """A field of the envelope, or of its source, that values get under a name."""

    name: str
    of_source: bool
    added: str

    def of(self, envelope: Mapping[str, Any]) -> str:
        """Return the field's JSON."""
        found = envelope["source"] if self.of_source else envelope
        return json.dumps(found.get(self.name), ensure_ascii=False, separators=(",", ":"))


def _added(text: str) -> tuple[AddedField, ...]:
    found = []
    for each in text.split(","):
        path, _, new = each.strip().partition(":")
        struct, _, name = path.rpartition(".")
        of_source = struct == "source" or (not struct and name not in _ENVELOPE)
        if struct not in ("", "source") or (of_source and name not in SOURCE_FIELDS):
            raise ValueError(
                f"{path!r} is no field of a message's source, nor one of {', '.join(_ENVELOPE)}"
            )
        found.append(AddedField(name, of_source, new or path.replace(".", "_")))
    return tuple(found)


@dataclass(frozen=True)
class Unwrap:
    """The transform's properties, by their names."""

    deletes: str = option(
        "delete.tombstone.handling.mode",
        values.one_of(
            "drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"
        ),
        "tombstone",
    )
    added: tuple[AddedField, ...] = option("add.fields", _added, ())
    prefix: str = option("add.fields.prefix", str, "__")
    flattens: bool = option("flatten.struct", values.boolean, False)
    delimiter: str = option("flatten.struct.delimiter", values.some_text, "_")
    arrays_are_documents: bool = option("array.encoding", values.switch("array", "document"), False)

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> Unwrap:
        """Return the properties, validated. Raises OptionError for others, too."""
        given = canonical(properties, option_names(cls), of=_OF)
        return cls(**fields_in(cls, given, _OF))

    def key(self, fields: Mapping[bytes, Slice]) -> str:
        """Return the key of the messages of an event, from its fields."""
        return _text({"id": self._tree(_identifier(fields))})

    def values(
        self, fields: Mapping[bytes, Slice], envelope: Mapping[str, Any], *, tombstones: bool
    ) -> list[str | None]:
        """Return the values of the messages of an event, from its fields.

        An update without the document has the fields that were set, by their dotted paths, and the
        `_id`. `envelope` is the message with the fields to add, if there are any.
        """
        full, described = (fields.get(name) for name in (b"fullDocument", b"updateDescription"))
        if full is not None and full.kind == DOCUMENT:
            return [self._value(self._fields(full.value), envelope, deleted=False)]
        if described is not None and described.kind == DOCUMENT:
            changed = self._fields(fields_of(described.value)[b"updatedFields"].value)
            if self.flattens:
                changed = {name.replace(".", self.delimiter): v for name, v in changed.items()}
            changed["_id"] = self._tree(_identifier(fields))
            return [self._value(changed, envelope, deleted=False)]
        tombstone: list[str | None] = [None] if tombstones else []
        if self.deletes.startswith("rewrite"):
            rewritten = self._value({}, envelope, deleted=True)
            return [rewritten, *(tombstone if self.deletes != "rewrite" else ())]
        return [] if self.deletes == "drop" else [None]

    def _value(self, tree: dict[str, Tree], envelope: Mapping[str, Any], *, deleted: bool) -> str:
        if self.deletes.startswith("rewrite"):
            tree["__deleted"] = "true" if deleted else "false"
        tree |= {self.prefix + each.added: each.of(envelope) for each in self.added}
        return _text(dict(self._flat(tree)) if self.flattens else tree)

    def _flat(self, tree: Mapping[str, Tree], prefix: str = "") -> Iterator[tuple[str, Tree]]:
        for name, each in tree.items():
            if isinstance(each, dict):
                yield from self._flat(each, f"{prefix}{name}{self.delimiter}")
            else:
                yield prefix + name, each

    def _fields(self, document: bytes) -> dict[str, Tree]:
        return {
            name.decode(errors="replace"): self._tree(each)
            for name, each in fields_of(document).items()
        }

    def _tree(self, field: Slice) -> Tree:
        kind, data = field
        if kind == DOCUMENT:
            return self._fields(data)
        if kind == ARRAY:
            elements = [self._tree(each) for each in fields_of(data).values()]
            if self.arrays_are_documents:
                return {f"_{index}": each for index, each in enumerate(elements)}
            return _alike(elements)
        if kind in (STRING, _CODE):
            return quoted(data[4:-1].decode(errors="replace"))
        if kind in (INT32, INT64, DATE):
            return str(int.from_bytes(data, "little", signed=True))
        if kind == TIMESTAMP:
            return f"{int.from_bytes(data[4:], 'little')}000"
        if kind == BINARY:
            return f'"{base64.b64encode(data[9 if data[4] == _OLD_BINARY else 5 :]).decode()}"'
        if kind == OBJECT_ID:
            return f'"{data.hex()}"'
        if kind == _DECIMAL:
            return f'"{Decimal128.from_bid(data)}"'
        if kind == _REGEX:
            pattern, options, _ = (part.decode(errors="replace") for part in data.split(b"\0"))
            return {"regex": quoted(pattern), "options": quoted(options)}
        text = _JSON.value(kind, data)
        return text.partition(": ")[2][:-1] if kind == DOUBLE and text.startswith("{") else text


def _identifier(fields: Mapping[bytes, Slice]) -> Slice:
    return fields_of(fields[b"documentKey"].value)[b"_id"]


def _alike(elements: list[Tree]) -> list[Tree]:
    """Return elements of an array, of which the documents have the fields of all, with nulls."""
    documents = [each for each in elements if isinstance(each, dict)]
    names = dict.fromkeys(name for each in documents for name in each)
    filled: list[dict[str, Tree]] = [
        {name: each.get(name, "null") for name in names} for each in documents
    ]
    for name in names:
        columns = _alike([each[name] for each in filled])
        for document, value in zip(filled, columns, strict=True):
            document[name] = value
    rest = iter(filled)
    return [next(rest) if isinstance(each, dict) else each for each in elements]


def _text(tree: Tree) -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(tree, list):
        return f"[{','.join(map(_text, tree))}]"
    return f"{{{','.join(f'{quoted(name)}:{_text(each)}' for name, each in tree.items())}}}"
