"""Runs of events: the events of one server reply, processed together where possible."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt

from bson.raw_bson import RawBSONDocument

from shard_client.bson.resume_token import is_invalidate

_SIZE = struct.Struct("<i").unpack_from
_ID, _DATA = b"\x03_id\0", b"\x02_data\0"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive events of a stream: their tokens' hex strings, ascending, and their BSON."""

    keys: Sequence[str]
    events: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def until(self, number: int) -> Run:
        """Return the first `number` events."""
        return Run(self.keys[:number], self.events[:number])


def run_of(events: Sequence[bytes]) -> Run:
    """Return the run of these events."""
    return Run(list(map(sort_key, events)), events)


def without_repeats(run: Run, last_key: str) -> Run:
    """Return the events whose tokens sort above `last_key` and above the tokens before them."""
    keys = run.keys
    if keys and keys[0] > last_key and all(map(lt, keys, islice(keys, 1, None))):
        return run
    kept: list[tuple[str, bytes]] = []
    for key, event in zip(keys, run.events, strict=True):
        if key > last_key:
            last_key = key
            kept.append((key, event))
    return Run([key for key, _ in kept], [event for _, event in kept])


def first_invalidate(run: Run) -> int | None:
    """Return the index of the first invalidate; None if there is none."""
    return next((index for index, key in enumerate(run.keys) if is_invalidate(key)), None)


def sort_key(event: bytes) -> str:
    """Return the token's hex string, by which events are ordered."""
    if event[4:9] == _ID and event[13:20] == _DATA:  # as every server writes it
        length = _SIZE(event, 20)[0]
        return event[24 : 23 + length].decode().upper()
    return str(RawBSONDocument(event)["_id"]["_data"]).upper()
