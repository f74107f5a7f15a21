"""Debezium's transform ExtractNewDocumentState: documents themselves as the values of messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shard_client.bson.values import DOCUMENT
from spark_sink.debezium.connect_values import ConnectValues, Tree, text_of
from spark_sink.debezium.envelope import SOURCE_FIELDS
from spark_sink.events.slices import NOTHING, Slice
from spark_sink.options import parsers
from spark_sink.options.declared import option

_ENVELOPE = ("op", "ts_ms")
_DOCUMENTS = (b"fullDocument", b"updateDescription", b"fullDocumentBeforeChange")

Added = tuple[str, tuple[str, ...]]
"""The name of a field that is added to values, and its path in the envelope."""


def _at(path: tuple[str, ...], envelope: Mapping[str, Any]) -> str:
    value: Any = envelope
    for name in path:
        value = value.get(name)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _added(text: str) -> tuple[Added, ...]:
    fields = []
    for entry in text.split(","):
        path, _, new = entry.strip().partition(":")
        struct, _, name = path.rpartition(".")
        of_source = struct == "source" or (not struct and name not in _ENVELOPE)
        if struct not in ("", "source") or (of_source and name not in SOURCE_FIELDS):
            raise ValueError(
                f"{path!r} is no field of a message's source, nor one of {', '.join(_ENVELOPE)}"
            )
        fields.append((new or path.replace(".", "_"), ("source", name) if of_source else (name,)))
    return tuple(fields)


@dataclass(frozen=True)
class Unwrap:
    """The transform's properties, by their names."""

    deletes: str = option(
        "delete.tombstone.handling.mode",
        parsers.one_of(
            "drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"
        ),
        "tombstone",
    )
    added: tuple[Added, ...] = option("add.fields", _added, ())
    prefix: str = option("add.fields.prefix", str, "__")
    flattens: bool = option("flatten.struct", parsers.boolean, False)
    delimiter: str = option("flatten.struct.delimiter", parsers.some_text, "_")
    arrays_are_documents: bool = option(
        "array.encoding", parsers.switch("array", "document"), False
    )

    @property
    def _values(self) -> ConnectValues:
        return ConnectValues(self.arrays_are_documents)

    def messages(
        self, topic: str, fields: Mapping[bytes, Slice], value: str, *, tombstones: bool
    ) -> Iterator[tuple[str, str, str | None]]:
        """Return topic, key and value of the messages of an event.

        `topic` and `value` are those of the message without the transform.
        """
        identifier = self._values.value(fields[b"documentKey"].fields()[b"_id"])
        key = text_of({"id": identifier})
        for made in self._made(fields, identifier, value, tombstones=tombstones):
            yield topic, key, made

    def _made(
        self, fields: Mapping[bytes, Slice], identifier: Tree, value: str, *, tombstones: bool
    ) -> list[str | None]:
        """Return the values of the messages of an event, from its fields.

        An update without the document has the fields that were set, by their dotted paths, and the
        `_id`; a delete that is rewritten has the document before it, if there is an image.
        """
        envelope = json.loads(value) if self.added else {}
        full, described, before = (fields.get(name, NOTHING) for name in _DOCUMENTS)
        if full.kind == DOCUMENT:
            return [self._value(self._values.fields(full), envelope, deleted=False)]
        if described.kind == DOCUMENT:
            changed = self._values.fields(described.fields().get(b"updatedFields", NOTHING))
            if self.flattens:
                changed = {name.replace(".", self.delimiter): v for name, v in changed.items()}
            changed["_id"] = identifier
            return [self._value(changed, envelope, deleted=False)]
        tombstone: list[str | None] = [None] if tombstones else []
        if self.deletes.startswith("rewrite"):
            rewritten = self._value(self._values.fields(before), envelope, deleted=True)
            return [rewritten, *(tombstone if self.deletes != "rewrite" else ())]
        return [] if self.deletes == "drop" else [None]

    def _value(self, tree: dict[str, Tree], envelope: Mapping[str, Any], *, deleted: bool) -> str:
        if self.deletes.startswith("rewrite"):
            tree["__deleted"] = "true" if deleted else "false"
        tree |= {self.prefix + name: _at(path, envelope) for name, path in self.added}
        return text_of(dict(self._flat(tree)) if self.flattens else tree)

    def _flat(self, tree: Mapping[str, Tree], prefix: str = "") -> Iterator[tuple[str, Tree]]:
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from self._flat(value, f"{prefix}{name}{self.delimiter}")
            else:
                yield prefix + name, value
