"""The deadlines of one client, without I/O: its first message, each message, its login."""

from router.limits.client_limits import ClientLimits
from router.server.incoming import Incoming


class ClientDeadlines:
    """Detects a client that takes too long; its progress is checked at intervals.

    ``now`` is the time of connecting, in seconds.
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

    def missed(
        self, now: float, incoming: Incoming, *, unsent: int, login_since: float | None
    ) -> str | None:
        """Return which deadline the client has missed, for the log; None if it has not.

        ``incoming`` are its messages, ``unsent`` the bytes of replies that it has not read;
        ``login_since`` is when a login has begun that is in progress.
        """
        limits, messages, unfinished = self._limits, incoming.count, incoming.unfinished
        another = messages != self._messages
        self._messages = messages
        if not unfinished:
            self._message_since = None
        elif self._message_since is None or another:
            self._message_since = now
        elif now - self._message_since > limits.message_time:
            return "a message has begun and does not end"
        if not unsent or unsent < self._unsent:
            self._reading_since = now
        self._unsent = unsent
        if now - self._reading_since > limits.message_time:
            return "the client does not read its replies"
        if another or not incoming.idle.is_set():
            self._idle_since = now
        idle_for = now - self._idle_since
        if not messages and not unfinished and idle_for > limits.login_time:
            return "no message has arrived"
        longest = limits.login_time + limits.failed_login_delay
        if login_since is not None and now - login_since > longest:
            return "a login has begun and does not end"
        if not incoming.may_idle and idle_for > limits.idle_before_login:
            return "the client does not log in"
        return None
