"""Reads a server's replies: documents as bytes, and one reply ahead of what is processed.

pymongo makes a RawBSONDocument for each document, also where it reads raw batches: 0.7 µs each,
three times what finding them here costs. So this module uses private attributes of its cursors,
and no other one does.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Thread, current_thread
from typing import Any, TypeVar

import bson
import pymongo

from spark_sink.events.slices import Slice, documents_in, values_in

_Reply = TypeVar("_Reply")
_READER = "mergerouter-reply"
CLOSED_WITHIN = 5.0
"""Seconds in which a server must confirm the end of cursors and sessions."""


class StreamCursor:
    """pymongo's cursor of a change stream (a CommandCursor), with its position.

    pymongo's own ChangeStream cannot be pointed at a shard, and it resumes by itself where
    EventStream must decide how to continue.
    """

    def __init__(self, cursor: Any) -> None:
        _read_raw(cursor)
        self._cursor = cursor
        self.resume_token: Any = cursor._post_batch_resume_token
        """The token at or above that of everything returned so far."""

    @property
    def alive(self) -> bool:
        """Whether the server may still return events."""
        return bool(self._cursor.alive)

    def try_reply(self, max_await: float | None = None) -> list[bytes]:
        """Return all buffered events, as BSON; if there are none, those of one getMore.

        The server waits up to `max_await` seconds for a first one; None keeps the former time.
        Raises PyMongoError, also NetworkTimeout by the client's socketTimeoutMS.
        """
        if max_await is not None:
            self._cursor._max_await_time_ms = max(1, int(max_await * 1000))
        events = _next_reply(self._cursor)
        self.resume_token = self._cursor._post_batch_resume_token or self.resume_token
        return events

    def close(self) -> None:
        """Kill the cursor; the server is waited for up to CLOSED_WITHIN."""
        with pymongo.timeout(CLOSED_WITHIN):
            self._cursor.close()


def replies(cursor: Any) -> Iterator[list[bytes]]:
    """Return all documents of a cursor, one server reply at a time. Raises PyMongoError."""
    _read_raw(cursor)
    while cursor.alive:
        if reply := _next_reply(cursor):
            yield reply


def one_ahead(replies: Generator[_Reply]) -> Iterator[_Reply]:
    """Return the replies; while one is processed, a thread reads the next one from the server.

    When the iteration ends, even early, the thread has ended and `replies` is closed. The thread is
    a daemon: a process that exits does not wait for a server.
    """
    asked = _asked(replies)
    try:
        while (reply := asked.result()) is not None:
            asked = _asked(replies)
            yield reply
    finally:
        if not sys.is_finalizing() and current_thread().name != _READER:
            wait((asked,))
        with suppress(ValueError):  # the thread still reads
            replies.close()


def _asked(replies: Generator[_Reply]) -> Future[_Reply | None]:
    """Let a thread read the next reply, and return its future; None at the end."""
    asked: Future[_Reply | None] = Future()

    def read() -> None:
        try:
            asked.set_result(next(replies, None))
        except BaseException as error:  # noqa: BLE001 - the reader of the future raises it
            asked.set_exception(error)

    Thread(target=read, name=_READER, daemon=True).start()
    return asked


def _read_raw(cursor: Any) -> None:
    """Let a cursor of a client for RawBSONDocument return bytes from now on."""
    cursor._data = deque(bytes(document.raw) for document in cursor._data)
    cursor._unpack_response = _unpacked


def _next_reply(cursor: Any) -> list[bytes]:
    """Return what is buffered, or else what one request returns. Raises PyMongoError."""
    documents: list[bytes] = []
    cursor._next_batch(documents)
    return documents


def _unpacked(response: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
    data = bytes(response.raw_command_response())
    return [_fields(data, 0, len(data))]


def _fields(data: bytes, start: int, end: int) -> dict[str, Any]:
    """Return the fields of a reply, or of its cursor, whose batch remains a list of BSON."""
    fields: dict[str, Any] = {}
    for kind, name, at, stop in values_in(data, start, end):
        if name == b"cursor":
            value: Any = _fields(data, at, stop)
        elif name in (b"firstBatch", b"nextBatch"):
            value = documents_in(data, at, stop)
        else:
            value = bson.decode(Slice(kind, data[at:stop]).wrapped())["v"]
        fields[name.decode()] = value
    return fields
