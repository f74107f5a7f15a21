"""Making events of two clusters comparable: times, UUIDs and sessions become ordinal numbers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import bson
from bson import Binary, Timestamp

from shard_client.bson.resume_token import cluster_time_of

Event = Mapping[str, Any]

_UUID_IN_TOKEN = re.compile("5A1004([0-9A-F]{32})")
"""The prefix of BinData of 16 bytes and subtype 4 in a token's KeyString."""


_WRITTEN_IN_PARALLEL = range(1000, 1150)
"""Ids of the workload's unordered bulk, whose writes interleave differently in each run."""


def is_parallel(event: Event) -> bool:
    """Return whether the event is of the unordered bulk, whose cluster times are arbitrary."""
    key = event.get("documentKey", {})
    # Only keys of the sharded collection have a region; projected events have no ns.
    return (
        event.get("operationType") == "insert"
        and "region" in key
        and key["_id"] in _WRITTEN_IN_PARALLEL
    )


def settled(events: Iterable[Event]) -> list[Event]:
    """Return the events with those of the unordered bulk sorted by id in their positions."""
    ordered = list(events)
    parallel = [event for event in ordered if is_parallel(event)]
    by_id = iter(sorted(parallel, key=lambda event: event["documentKey"]["_id"]))
    return [next(by_id) if is_parallel(event) else event for event in ordered]


class Normaliser:
    """Replaces values that differ between clusters by their rank or order of appearance.

    It learns from the ``cluster-expanded`` events of all shards, sorted by token, which have all
    cluster times, UUIDs and transactions of the cluster's other streams.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        ordered = sorted(events, key=lambda event: event["_id"]["_data"])
        times = sorted({event["clusterTime"] for event in ordered if not is_parallel(event)})
        self._times = {time: rank for rank, time in enumerate(times)}
        self._uuids: dict[bytes, str] = {}
        self._sessions: dict[bytes, str] = {}
        self._transactions: dict[int, int] = {}
        for event in ordered:
            for digits in _UUID_IN_TOKEN.findall(event["_id"]["_data"]):
                self._uuids.setdefault(bytes.fromhex(digits), f"<uuid {len(self._uuids)}>")
            if "lsid" in event:
                lsid = bytes(event["lsid"]["id"])
                self._sessions.setdefault(lsid, f"<session {len(self._sessions)}>")
                self._transactions.setdefault(event["txnNumber"], len(self._transactions))

    def event(self, event: Event) -> dict[str, Any]:
        """Return the event in comparable form, with its order of fields."""
        result: dict[str, Any] = {}
        for name, value in event.items():
            if name == "_id":
                result[name] = {k: self._token(v) for k, v in value.items()}
            elif name == "clusterTime":
                result[name] = self._time(value)
            elif name == "wallTime":
                result[name] = "<wall time>"
            elif name == "txnNumber":
                result[name] = self._transactions.get(value, value)
            else:
                result[name] = self._value(value)
        return result

    def text(self, event: Event) -> str:
        """Return the event as one line, with types and with long values shortened."""
        return repr(_short(self.event(event)))

    def encoded(self, event: Event) -> bytes:
        """Return the event as BSON, which is equal only if types and field order are."""
        return bson.encode(self.event(event))

    def _time(self, time: Timestamp) -> str:
        return f"<time {self._times.get(time, '?')}>"

    def _token(self, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        time = cluster_time_of(data)
        rest = data[18:]
        for uuid, label in self._uuids.items():
            rest = rest.replace(uuid.hex().upper(), label)
        return f"82{self._time(time)}{rest}"

    def _value(self, value: Any) -> Any:
        if isinstance(value, Binary):
            return self._uuids.get(bytes(value)) or self._sessions.get(bytes(value)) or value
        if isinstance(value, Mapping):
            return {name: self._value(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return value


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 300:
        return f"{value[:100]}…({len(value)} characters)"
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return value
