"""Events as lines of JSON, encoded in turns of the event loop, so that it is never held up.

The encoder keeps the interpreter's lock, so a thread would not help: an event of 12 MB can take a
second or more.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from bson import json_util
from bson.json_util import JSONOptions

from router.request.gradual_decoding import PIECE_SIZE, decode_run, pieces
from router.stream.merge.event_log import cut
from shard_client.bson.values import ARRAY, DOCUMENT
from shard_client.wire.documents import LENIENT, decode

_BYTES_A_COST: Final = 1024
"""Bytes of events whose encoding costs 1: up to an eighth of a millisecond for small values."""

Turn = Callable[[int], Awaitable[None]]
"""Waits for a turn of the loop for work of a cost, as ``Turns.take``."""


async def json_lines(events: list[bytes], form: JSONOptions, turn: Turn) -> AsyncIterator[bytes]:
    """Yield the lines of events, one large line or some small ones at a time.

    ``turn`` is awaited before each step of about PIECE_SIZE bytes. A single string or binary value
    is encoded in one turn, however long.
    """
    while events:
        some, size = cut(events, PIECE_SIZE, first=True)
        events = events[len(some) :]
        if size > PIECE_SIZE:
            yield await _large_line(some[0], form, turn)
        else:
            await turn(1 + size // _BYTES_A_COST)
            lines = [json_util.dumps(decode(event, LENIENT), json_options=form) for event in some]
            yield "\n".join([*lines, ""]).encode()


def heartbeat_line(pbrt: bytes, form: JSONOptions) -> bytes:
    """Return the line that gives a stream's resume token, a raw document."""
    return json_util.dumps({"resolved": decode(pbrt)}, json_options=form).encode() + b"\n"


async def _large_line(event: bytes, form: JSONOptions, turn: Turn) -> bytes:
    """Return the line of an event, encoded piece by piece."""
    parts: list[bytes] = []

    async def add(kind: int, start: int, limit: int) -> None:
        """Add the text of the document or the array at ``start``, of type ``kind``."""
        opening, closing = (b"[", b"]") if kind == ARRAY else (b"{", b"}")
        parts.append(opening)
        for number, (piece, first, end) in enumerate(pieces(event, start, limit)):
            if number:
                parts.append(b", ")
            if piece in (DOCUMENT, ARRAY):
                name_end = event.index(0, first + 1)
                if kind == DOCUMENT:
                    name = event[first + 1 : name_end].decode(errors="replace")
                    parts.append(json.dumps(name).encode() + b": ")
                await add(piece, name_end + 1, end)
            else:
                await turn(1 + (end - first) // _BYTES_A_COST)
                values = decode_run(kind, event[first:end], LENIENT)
                parts.append(json_util.dumps(values, json_options=form)[1:-1].encode())
        parts.append(closing)

    await add(DOCUMENT, 0, len(event))
    return b"".join([*parts, b"\n"])
