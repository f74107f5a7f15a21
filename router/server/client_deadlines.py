"""The deadlines of one client, without I/O: its first message, each message, its login."""

from dataclasses import dataclass

from router.client_limits import ClientLimits


@dataclass(frozen=True, slots=True)
class ClientProgress:
    """A client's progress so far.

    Args:
        messages: number of whole messages received.
        unfinished: whether a message is being received.
        unsent: bytes of replies that the client has not read.
        busy: whether a command is running.
        login_since: the time at which a login has begun that is still in progress.
        may_idle: whether the client has logged in, or does not have to.
    """

    messages: int
    unfinished: bool = False
    unsent: int = 0
    busy: bool = False
    login_since: float | None = None
    may_idle: bool = True


class ClientDeadlines:
    """Detects a client that takes too long; its progress is checked at intervals.

    Args:
        limits: the limits of clients.
        now: the time of connecting, in seconds.
    """

    __slots__ = (
        "_idle_since", "_limits", "_message_since", "_messages", "_reading_since", "_unsent"
    )  # fmt: skip

    def __init__(self, limits: ClientLimits, now: float) -> None:
        self._limits = limits
        self._idle_since = now
        self._messages = 0
        self._message_since: float | None = None
        self._reading_since = now
        self._unsent = 0

    def missed(self, progress: ClientProgress, now: float) -> str | None:
        """Return which deadline the client has missed, for the log; None if it has not."""
        limits = self._limits
        another = progress.messages != self._messages
        self._messages = progress.messages
        if not progress.unfinished:
            self._message_since = None
        elif self._message_since is None or another:
            self._message_since = now
        elif now - self._message_since > limits.message_time:
            return "a message has begun and does not end"
        if not progress.unsent or progress.unsent < self._unsent:
            self._reading_since = now
        self._unsent = progress.unsent
        if now - self._reading_since > limits.message_time:
            return "the client does not read its replies"
        if another or progress.busy:
            self._idle_since = now
        idle_for = now - self._idle_since
        if not progress.messages and not progress.unfinished and idle_for > limits.login_time:
            return "no message has arrived"
        begun = progress.login_since
        if begun is not None and now - begun > limits.login_time + limits.failed_login_delay:
            return "a login has begun and does not end"
        if not progress.may_idle and idle_for > limits.idle_before_login:
            return "the client does not log in"
        return None
