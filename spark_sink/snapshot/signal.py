"""Signals: documents that request a snapshot from a running query, or stop, pause or resume one.

A signal `log` only requests a notification, which shows that signals arrive. The form is that of
Debezium's MongoDB connector (docs/spark-reference.md#signals). Anybody who may write to
a channel can send a signal, so each is validated first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from spark_sink.options.java_patterns import compiled
from spark_sink.options.parsers import json_value
from spark_sink.snapshot.plan import ANY_DATE, bound_text
from spark_sink.snapshot.selections import DocumentFilter

EXECUTE, STOP = "execute-snapshot", "stop-snapshot"
PAUSE, RESUME = "pause-snapshot", "resume-snapshot"
LOG = "log"
SnapshotKind = Literal["initial", "blocking", "incremental"]
"""The kinds of snapshots, of which signals request the last two."""

_FIELDS = {
    EXECUTE: ("type", "data-collections", "additional-conditions", "additional-condition"),
    STOP: ("type", "data-collections"),
    PAUSE: ("type",),
    RESUME: ("type",),
    LOG: ("message",),
}
_MAX_ID_LENGTH = 200
# These run code on the servers.
_CODE = frozenset({"$where", "$function", "$accumulator"})


class SignalError(ValueError):
    """A document is not a signal; the message states why."""


@dataclass(frozen=True)
class Signal:
    """What a signal requests.

    `action` is one of _FIELDS, and `kind` that of the snapshot. `collections` are regular
    expressions for whole names such as shop.orders. `message` is the text of a notification.
    """

    id: str
    action: str
    kind: SnapshotKind = "incremental"
    collections: tuple[str, ...] = ()
    conditions: tuple[DocumentFilter, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class ReceivedSignal:
    """A signal as received: its document, or a text that states why there is none."""

    id: str
    document: Mapping[str, Any] | str


def signal_of(identifier: str, document: Mapping[str, Any]) -> Signal:
    """Return the signal in a document with `type` and `data`. Raises SignalError."""
    if not 0 < len(identifier) <= _MAX_ID_LENGTH:
        raise SignalError(f"the id must have 1 to {_MAX_ID_LENGTH} characters")
    action = str(document.get("type"))
    if action not in _FIELDS:
        raise SignalError(f"type must be one of {', '.join(_FIELDS)}")
    data = _data(document.get("data"))
    unknown = sorted(set(data) - set(_FIELDS[action]))
    if unknown:
        raise SignalError(f"data has an unknown field {unknown[0]!r}")
    if action == LOG:
        return Signal(identifier, action, message=_text(data.get("message"), "data.message"))
    kind_text = str(data.get("type", "incremental")).lower()
    if kind_text not in ("incremental", "blocking"):
        raise SignalError("data.type must be incremental or blocking")
    kind: SnapshotKind = "blocking" if kind_text == "blocking" else "incremental"
    if kind == "blocking" and action != EXECUTE:
        raise SignalError("only incremental snapshots can be stopped, paused and resumed")
    collections = tuple(map(_pattern, _entries(data, "data-collections")))
    if action == EXECUTE and not collections:
        raise SignalError("name the collections to read, such as shop.orders (data-collections)")
    conditions = list(map(_condition, _entries(data, "additional-conditions")))
    if "additional-condition" in data:  # of all collections: Debezium's older form
        every = {"data-collection": ".*", "filter": data["additional-condition"]}
        conditions.append(_condition(every))
    return Signal(identifier, action, kind, collections, tuple(conditions))


def digest(identifier: str) -> str:
    """Return what an offset keeps of a signal's id, so that many ids take little space."""
    return blake2b(identifier.encode(errors="replace"), digest_size=6).hexdigest()


def _data(data: Any) -> Mapping[str, Any]:
    if isinstance(data, str):  # as Debezium's other connectors write it
        data = parsed_json(data, "data")
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise SignalError("data must be a document")
    return data


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise SignalError(f"{what} must be a text")
    return value


def _entries(data: Mapping[str, Any], name: str) -> list[Any]:
    values = data.get(name, [])
    if not isinstance(values, list):
        raise SignalError(f"{name} must be an array")
    return values


def _pattern(entry: Any) -> str:
    text = _text(entry, "the name of a collection, such as shop.orders,")
    pattern = text.strip().replace('"', "")  # Debezium quotes names with dots
    try:
        compiled(pattern)
    except ValueError as error:
        raise SignalError(str(error)) from None
    return pattern


def _condition(entry: Any) -> DocumentFilter:
    if not isinstance(entry, Mapping) or set(entry) != {"data-collection", "filter"}:
        raise SignalError("an additional condition has the fields data-collection and filter")
    condition = entry["filter"]
    if isinstance(condition, str):
        condition = parsed_json(condition, "filter")
    if not isinstance(condition, Mapping):
        raise SignalError("filter must be a filter of MongoDB, as a document or as JSON")
    _refuse_code(condition)
    text = bound_text(condition)
    parsed_json(text, "filter")  # a document may have {"$oid": …} as a field
    return DocumentFilter(_pattern(entry["data-collection"]), text)


def parsed_json(text: str, name: str) -> Any:
    """Return extended JSON as values of BSON. Raises SignalError, which names the text."""
    try:
        return json_value(text, ANY_DATE)
    except ValueError as error:
        raise SignalError(f"{name} is not JSON: {error}") from None


def _refuse_code(value: Any) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in _CODE:
                raise SignalError(f"filter must not have {name}, which runs code on the servers")
            _refuse_code(inner)
    elif isinstance(value, list):
        for item in value:
            _refuse_code(item)
