"""The cursor of a change stream."""

from __future__ import annotations

from typing import Any

from bson.raw_bson import RawBSONDocument


class StreamCursor:
    """pymongo's cursor of a change stream (a CommandCursor of RawBSONDocument), with its position.

    pymongo's own ChangeStream cannot be pointed at a shard, and it resumes by itself where
    EventStream must decide how to continue.
    """

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.resume_token: Any = cursor._post_batch_resume_token
        """The token at or above that of everything returned so far."""

    @property
    def alive(self) -> bool:
        """Whether the server may still return events."""
        return bool(self._cursor.alive)

    def try_reply(self, events: list[RawBSONDocument]) -> None:
        """Append all buffered events; if there are none, those of one getMore."""
        self._cursor._next_batch(events)
        self.resume_token = self._cursor._post_batch_resume_token or self.resume_token

    def close(self) -> None:
        """Kill the cursor."""
        self._cursor.close()
