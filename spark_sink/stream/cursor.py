"""The cursor of a change stream: what the readers of streams need of it."""

from __future__ import annotations

from typing import Any, Protocol

from bson.raw_bson import RawBSONDocument


class WatchedStream(Protocol):
    """The part of pymongo's ChangeStream that is used here."""

    @property
    def alive(self) -> bool:
        """Whether the server may still return events."""

    @property
    def resume_token(self) -> Any:
        """The token at or above that of everything returned so far."""

    def try_next(self) -> RawBSONDocument | None:
        """Return the next event, or None if one getMore returned none."""

    def try_reply(self, events: list[RawBSONDocument]) -> None:
        """Append all buffered events; if there are none, those of one getMore."""

    def close(self) -> None:
        """Kill the cursor."""


class StreamCursor:
    """pymongo's cursor of a change stream (a CommandCursor of RawBSONDocument), with its position.

    pymongo's own ChangeStream cannot be pointed at a shard, and it resumes by itself where
    EventStream must decide how to continue.
    """

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._last: RawBSONDocument | None = None  # None: all of the batch has been returned
        self._token = cursor._post_batch_resume_token

    @property
    def alive(self) -> bool:
        """As WatchedStream.alive."""
        return bool(self._cursor.alive)

    @property
    def resume_token(self) -> Any:
        """As WatchedStream.resume_token."""
        return self._token if self._last is None else self._last["_id"]

    def try_next(self) -> RawBSONDocument | None:
        """As WatchedStream.try_next."""
        cursor = self._cursor
        event: RawBSONDocument | None = cursor.try_next()
        if event is not None and cursor._has_next():
            self._last = event
        else:
            self._last = None
            self._token = cursor._post_batch_resume_token or self._token
        return event

    def try_reply(self, events: list[RawBSONDocument]) -> None:
        """As WatchedStream.try_reply."""
        self._cursor._next_batch(events)
        self._last = None
        self._token = self._cursor._post_batch_resume_token or self._token

    def close(self) -> None:
        """As WatchedStream.close."""
        self._cursor.close()
