"""A client's cursor: one cursor id for many remote cursors, and who may use it."""

import base64
import hashlib
from contextlib import ExitStack
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from router.limits.cursor_admission import Admitted
from router.lookup.completing_reader import CompletingReader
from router.privileges import User
from router.stream.client_reader import ClientReader
from router.stream.readers.log_reader import Batch
from router.stream.running_stream import RunningStream
from shard_client.errors import CommandError, ErrorCode


@lru_cache
def user_digest(name: str | None) -> bytes:
    """Return what a session's full id has of a user: the hash of its name, or of an empty one."""
    return hashlib.sha256((name or "").encode()).digest()


class Owner(NamedTuple):
    """The owner of a cursor: the session's ``lsid.id`` as bytes and the user ``name@db``, if any.

    ``client`` is the address to which the cursor is charged; other addresses may read it, too.
    ``connection`` describes the connection that opened it: address, port and application.
    """

    lsid: bytes | None = None
    user: str | None = None
    client: str | None = None
    connection: str | None = None


def _session(owner: Owner) -> str:
    """Return a session as mongos prints it: its id, and the hash of its user's name."""
    lsid = owner.lsid
    if lsid is None:
        return "none"
    name = str(UUID(bytes=lsid)) if len(lsid) == 16 else lsid.hex()
    return f"{name} - {base64.b64encode(user_digest(owner.user)).decode()} -  - "


class MergedCursor:
    """A client's cursor, for one getMore at a time.

    ``user`` has opened it, None where clients do not log in. ``api`` has the API parameters of the
    command that opened it, as mongos prints them.
    """

    def __init__(
        self,
        cursor_id: int,
        namespace: str,
        owner: Owner,
        reader: ClientReader | CompletingReader,
        admitted: Admitted,
        *,
        user: User | None = None,
        api: str = "{}",
    ) -> None:
        self.cursor_id = cursor_id
        self.namespace = namespace
        self.owner = owner
        self.user = user
        self.api = api
        self.busy = False
        """Whether a getMore uses it."""
        self.last_used = 0.0
        """The loop's time at which it was opened, or its last getMore ended."""
        self._has_ended = False
        self._reader = reader
        self._client_reader = (
            reader.client_reader if isinstance(reader, CompletingReader) else reader
        )
        self._admitted = admitted

    @property
    def running_stream(self) -> RunningStream | None:
        """The stream that it reads; None during a move and after ``close``."""
        return self._client_reader.stream

    @property
    def needs(self) -> bytes:
        """The sort key beyond which the client needs all events."""
        return self._client_reader.log_reader.needs

    @property
    def finished(self) -> bool:
        """Whether the stream has ended or failed, or the cursor was killed: no events follow."""
        return self._has_ended or self._client_reader.interrupted is not None

    def check(self, asking: Owner) -> None:
        """Raise CommandError unless ``asking`` may use the cursor now.

        143 CursorInUse, or the error for a different session or user.
        """
        if self.owner.user != asking.user:
            raise CommandError(
                ErrorCode.Unauthorized,
                f"cursor id {self.cursor_id} was not created by the authenticated user :: caused "
                "by :: User not authorized to access cursor",
            )
        if self.busy:
            message = f"Cursor already in use (id: {self.cursor_id})."
            raise CommandError(ErrorCode.CursorInUse, message)
        self._check_session(asking)

    def _check_session(self, asking: Owner) -> None:
        """Raise CommandError for a getMore in a different session, with mongos's error codes."""
        created, used = self.owner.lsid, asking.lsid
        if created == used:
            return
        if self.owner.user is not None:
            raise CommandError(
                ErrorCode.Unauthorized,
                f"Cursor session id ({_session(self.owner)}) is not the same as the operation "
                f"context's session id ({_session(asking)})",
            )
        created_where, used_where = "not created in a session", "without an lsid"
        if created is not None:
            created_where = f"created in session {_session(self.owner)}"
        if used is not None:
            used_where = f"in session {_session(asking)}"
        code = 50799 if created is None else 50800 if used is None else 50801
        cursor = f"cursor {self.cursor_id}, which was {created_where}, {used_where}"
        raise CommandError(code, f"Cannot run getMore on {cursor}")

    @property
    def refusal(self) -> CommandError | None:
        """mongos's error if the cursor's user may no longer read its namespace, else None."""
        if self.user is None or self.user.may_watch(self.namespace):
            return None
        message = f"not authorized for getMore with cursor id {self.cursor_id}"
        return CommandError(ErrorCode.Unauthorized, message)

    def first_batch(self) -> Batch:
        """Return the opening's batch without waiting; like mongos's, it has no events.

        Raises CommandError.
        """
        return self._reader.first_batch()

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return the next batch, as ``ClientReader.next_batch`` does."""
        try:
            batch = await self._reader.next_batch(batch_size, max_time)
        except CommandError:
            self._has_ended = True
            raise
        self._has_ended = batch.closed
        return batch

    def close(self, reason: CommandError | None = None) -> None:
        """Stop reading, and let another cursor be admitted; idempotent.

        Pending and later ``next_batch`` calls fail at once with ``reason`` (default: 237). Remotes
        without other readers are closed soon.
        """
        killed = CommandError(ErrorCode.CursorKilled, "operation was interrupted")
        with ExitStack() as closing:
            closing.callback(self._admitted.close)
            closing.callback(self._reader.close)
            self._reader.interrupt(reason or killed)
