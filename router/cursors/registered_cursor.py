"""An open cursor as the registry keeps it, and its use by one getMore at a time."""

from collections.abc import Callable
from types import TracebackType

import structlog

from router.cursors.merged_cursor import MergedCursor
from router.cursors.owner import Owner, check_session, check_user
from router.streams.admission import Ticket
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

log = structlog.get_logger()


class RegisteredCursor:
    """A merged cursor with its owner, its ticket, and whether a getMore uses it.

    It is a context manager: the cursor is busy inside the ``with`` block of a getMore. Call
    ``check`` first. A getMore that an unexpected exception interrupts may have lost events: it
    raises CommandError, labelled resumable, and ends the cursor.

    Args:
        cursor: the cursor.
        owner: the client that opened it.
        ticket: the right to keep it open.
        used: called with it and whether the getMore was interrupted, after each use.
        now: the loop's time in seconds, at which the idle time begins.
    """

    __slots__ = ("_used", "busy", "cursor", "last_used", "owner", "ticket")

    def __init__(
        self,
        cursor: MergedCursor,
        owner: Owner,
        ticket: Ticket,
        used: Callable[["RegisteredCursor", bool], None],
        now: float,
    ) -> None:
        self.cursor = cursor
        self.owner = owner
        self.ticket = ticket
        self.last_used = now
        self.busy = False
        self._used = used

    def check(self, client: Owner) -> None:
        """Raise CommandError unless ``client`` may use the cursor now.

        143 CursorInUse, or the error for a different session or user.
        """
        cursor_id = self.cursor.cursor_id
        check_user(cursor_id, self.owner, client)
        if self.busy:
            raise CommandError(ErrorCode.CursorInUse, f"Cursor already in use (id: {cursor_id}).")
        check_session(cursor_id, self.owner, client)

    def __enter__(self) -> MergedCursor:
        self.busy = True
        return self.cursor

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.busy = False
        expected = error is None or isinstance(error, CommandError)
        try:
            self._used(self, not expected)
        except Exception:  # the reply is right all the same
            log.exception("closing a cursor failed", cursor=self.cursor.cursor_id)
        if isinstance(error, Exception) and not expected:
            log.error("getMore failed", cursor=self.cursor.cursor_id, exc_info=error)
            raise CommandError.unexpected(error) from error
