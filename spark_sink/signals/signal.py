"""Signals: documents that ask a running query for a snapshot, or stop, pause or resume one.

A signal `log` only asks for a notification, which shows that signals arrive.

Their form is that of Debezium's MongoDB connector, version 2.6 (docs/spark.md#signals). Anybody who
may write to the place of signals can send one, so each is checked before anything acts on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bson import json_util
from bson.errors import BSONError

EXECUTE, STOP = "execute-snapshot", "stop-snapshot"
PAUSE, RESUME = "pause-snapshot", "resume-snapshot"
LOG = "log"
KINDS = (EXECUTE, STOP, PAUSE, RESUME, LOG)

_FIELDS = {
    EXECUTE: ("type", "data-collections", "additional-conditions"),
    STOP: ("type", "data-collections"),
    PAUSE: ("type",),
    RESUME: ("type",),
    LOG: ("message",),
}
_MOST_ENTRIES = 1000
_LONGEST_ENTRY = 1000
_LONGEST_FILTER = 20_000
_LONGEST_ID = 200
# These run code on the servers.
_CODE = frozenset({"$where", "$function", "$accumulator"})


class SignalError(ValueError):
    """A document is no signal; the message says why."""


@dataclass(frozen=True)
class Condition:
    """A filter on the documents of collections. collections: as in Signal; filter: canonical
    extended JSON."""

    collections: str
    filter: str

    def matches(self, namespace: str) -> bool:
        """Whether the condition is one on the documents of this collection."""
        return _matches(self.collections, namespace)

    @property
    def document(self) -> dict[str, Any]:
        """The filter for `find`."""
        found: dict[str, Any] = json_util.loads(
            self.filter, json_options=json_util.CANONICAL_JSON_OPTIONS
        )
        return found


@dataclass(frozen=True)
class Signal:
    """What a signal asks for.

    kind: one of KINDS; blocking: whether the stream waits for the snapshot; collections: regular
    expressions that match whole names such as shop.orders; conditions: filters on documents;
    message: what a notification is to repeat.
    """

    id: str
    kind: str
    blocking: bool = False
    collections: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    message: str = ""


def signal_of(identifier: str, document: Mapping[str, Any]) -> Signal:
    """The signal in a document, with `type` and `data`. Raises SignalError."""
    if not 0 < len(identifier) <= _LONGEST_ID:
        raise SignalError(f"the id must have 1 to {_LONGEST_ID} characters")
    kind = document.get("type")
    if kind not in KINDS:
        raise SignalError(f"type must be one of {', '.join(KINDS)}")
    data = _data(document.get("data"))
    unknown = sorted(set(data) - set(_FIELDS[kind]))
    if unknown:
        raise SignalError(f"data has an unknown field {unknown[0]!r}")
    if kind == LOG:
        return Signal(identifier, kind, message=_message(data.get("message")))
    blocking = _blocking(data.get("type", "incremental"))
    if blocking and kind != EXECUTE:
        raise SignalError("only incremental snapshots can be stopped, paused and resumed")
    collections = tuple(map(_pattern, _entries(data, "data-collections")))
    if kind == EXECUTE and not collections:
        raise SignalError("data-collections must name the collections to read")
    conditions = tuple(map(_condition, _entries(data, "additional-conditions")))
    return Signal(identifier, kind, blocking, collections, conditions)


def matches_any(patterns: Sequence[str], namespace: str) -> bool:
    """Whether one of the regular expressions matches the whole name of a collection."""
    return any(_matches(pattern, namespace) for pattern in patterns)


def _matches(pattern: str, namespace: str) -> bool:
    return pattern == namespace or re.fullmatch(pattern, namespace) is not None


def _data(data: Any) -> Mapping[str, Any]:
    if isinstance(data, str):  # as Debezium's other connectors write it
        data = _parsed(data, "data")
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise SignalError("data must be a document")
    return data


def _message(text: Any) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_ENTRY:
        raise SignalError(f"data.message must be a text of 1 to {_LONGEST_ENTRY} characters")
    return text


def _blocking(text: Any) -> bool:
    if not isinstance(text, str) or text.lower() not in ("incremental", "blocking"):
        raise SignalError("data.type must be incremental or blocking")
    return text.lower() == "blocking"


def _entries(data: Mapping[str, Any], name: str) -> list[Any]:
    found = data.get(name, [])
    if not isinstance(found, list) or len(found) > _MOST_ENTRIES:
        raise SignalError(f"{name} must be an array of at most {_MOST_ENTRIES} entries")
    return found


def _pattern(entry: Any) -> str:
    if not isinstance(entry, str) or not 0 < len(entry) <= _LONGEST_ENTRY:
        raise SignalError(
            f"collections are named by texts of 1 to {_LONGEST_ENTRY} characters, such as "
            "shop.orders"
        )
    pattern = entry.strip().replace('"', "")  # Debezium quotes names with dots
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise SignalError(f"{entry!r} is no regular expression: {error}") from None
    return pattern


def _condition(entry: Any) -> Condition:
    if not isinstance(entry, Mapping) or set(entry) != {"data-collection", "filter"}:
        raise SignalError("an additional condition has the fields data-collection and filter")
    condition = entry["filter"]
    if isinstance(condition, str):
        condition = _parsed(condition, "filter")
    if not isinstance(condition, Mapping):
        raise SignalError("filter must be a filter of MongoDB, as a document or as JSON")
    _refuse_code(condition)
    text = json_util.dumps(condition, json_options=json_util.CANONICAL_JSON_OPTIONS)
    if len(text) > _LONGEST_FILTER:
        raise SignalError(f"filter must have at most {_LONGEST_FILTER} characters")
    return Condition(_pattern(entry["data-collection"]), text)


def _parsed(text: str, name: str) -> Any:
    try:
        return json_util.loads(text)
    except (ValueError, TypeError, BSONError, RecursionError) as error:
        raise SignalError(f"{name} is no JSON: {error}") from None


def _refuse_code(value: Any) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in _CODE:
                raise SignalError(f"filter must not have {name}, which runs code on the servers")
            _refuse_code(inner)
    elif isinstance(value, list):
        for each in value:
            _refuse_code(each)
