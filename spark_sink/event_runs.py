"""Runs of events: what one reply of a stream brings, handled as a whole where that is possible."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt

from bson.raw_bson import RawBSONDocument

from spark_sink.positions import is_invalidate

_INT = struct.Struct("<i")
_SIZE = _INT.unpack_from


@dataclass(frozen=True, slots=True)
class Run:
    """Events that follow each other in a stream.

    keys: their tokens' hex strings, in ascending order; events: their BSON.
    """

    keys: Sequence[str]
    events: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def until(self, number: int) -> Run:
        """The first `number` events."""
        return Run(self.keys[:number], self.events[:number])

    def documents(self) -> list[RawBSONDocument]:
        """The events as documents."""
        return list(map(RawBSONDocument, self.events))


def run_of(documents: Sequence[RawBSONDocument]) -> Run:
    """The run of these events."""
    return Run(list(map(sort_key, documents)), [bytes(each.raw) for each in documents])


def without_repeats(run: Run, last_key: str) -> Run:
    """The events whose tokens sort above `last_key` and above the tokens before them."""
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
    """The index of the first invalidate; None where there is none."""
    return next((index for index, key in enumerate(run.keys) if is_invalidate(key)), None)


def sort_key(event: RawBSONDocument) -> str:
    """What the event is ordered by: its token's hex string (docs/protocol.md#resume-tokens)."""
    raw = event.raw
    if raw[4:9] == b"\x03_id\0" and raw[13:20] == b"\x02_data\0":  # as every server writes it
        length = _SIZE(raw, 20)[0]
        return bytes(raw[24 : 23 + length]).decode().upper()
    return str(event["_id"]["_data"]).upper()
