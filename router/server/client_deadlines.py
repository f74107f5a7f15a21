"""The deadlines of one client, without I/O: its first message, each message, its login."""

from dataclasses import dataclass
from typing import Final

from router.client_limits import ClientLimits

LEAST_PROGRESS: Final = 1024 * 1024
"""Bytes of a message by which its deadline is extended, for large messages on slow networks."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A client's progress so far.

    Args:
        messages: number of whole messages received.
        unfinished: bytes received of a message that is not yet whole.
        busy: whether a command is running.
        login_since: the time at which a login has begun that is still in progress.
        may_idle: whether the client has logged in, or does not have to.
    """

    messages: int
    unfinished: int = 0
    busy: bool = False
    login_since: float | None = None
    may_idle: bool = True


class ClientDeadlines:
    """Detects a client that takes too long; its progress is checked at intervals.

    Args:
        limits: the limits of clients.
        now: the time of connecting, in seconds.
    """

    __slots__ = ("_idle_since", "_limits", "_message_since", "_messages", "_received")

    def __init__(self, limits: ClientLimits, now: float) -> None:
        self._limits = limits
        self._idle_since = now
        self._messages = 0
        self._message_since: float | None = None
        self._received = 0

    def missed(self, progress: Progress, now: float) -> str | None:
        """Return which deadline the client has missed, for the log; None if it has not."""
        limits = self._limits
        another = progress.messages != self._messages
        self._messages = progress.messages
        if not progress.unfinished:
            self._message_since = None
        elif (
            self._message_since is None
            or another
            or progress.unfinished - self._received >= LEAST_PROGRESS
        ):
            self._message_since, self._received = now, progress.unfinished
        elif now - self._message_since > limits.message_time:
            return "a message has begun and does not end"
        if another or progress.busy:
            self._idle_since = now
        idle_for = now - self._idle_since
        if not progress.messages and not progress.unfinished and idle_for > limits.login_time:
            return "no message has come"
        begun = progress.login_since
        if begun is not None and now - begun > limits.login_time + limits.failed_login_delay:
            return "a login has begun and does not end"
        if not progress.may_idle and idle_for > limits.idle_before_login:
            return "the client does not log in"
        return None
