"""Flow control of a merged stream: which remotes are read, how far ahead, and with what waits.

Pure: times are arguments, in seconds on one clock; sizes are bytes of memory. The rules are in
docs/design.md#a-remote-cursor (budgets) and docs/design.md#idle-shards (waits).
"""

from typing import Final, NamedTuple

from router.memory import Memory
from router.stream_settings import StreamSettings

_AVERAGED = 8
"""Number of batches over which the pace is averaged."""
_FILTERED_PART: Final = 4
"""Divisor of a stream's budgets while its events are distributed to filters: the router takes the
events itself then, as fast as it can."""
_LIVELY = 1.0
"""Seconds after its last event during which a stream is expected to deliver more."""


class Wait(NamedTuple):
    """The wait of a remote's next getMore, in seconds.

    ``rest`` is the time for which the getMore is not sent at all, unless a nudge is; 0 for at once.
    """

    seconds: float
    rest: float = 0.0


class FlowControl:
    """Decides for one stream when its remotes are read, and how long their getMores wait.

    A getMore waits long, since events end the wait. An event that other members keep back needs
    their promises at once, which progress cursors report. While progress cursors or notes are out
    of budget, a getMore ends when the next note is done, so that there is one getMore per note.
    """

    def __init__(self, limits: StreamSettings, memory: Memory) -> None:
        self._limits = limits
        self._memory = memory
        self._prefetch = Prefetch(limits)
        self._filtered = Prefetch(limits, _FILTERED_PART)
        self._read_until = 0.0
        self._ahead = limits.first_ahead_bytes
        self.pace = Pace(limits)

    def client_read(self, now: float) -> None:
        """Record that a client reads the stream or waits for it."""
        self._read_until = now + self._limits.linger

    def client_took(self, size: int) -> None:
        """Record that a client has taken events of ``size`` bytes, so that more is read ahead."""
        self._ahead += 2 * size

    def clients_left(self) -> None:
        """Record that the last client has left, so that nothing more is read ahead."""
        self._read_until = float("-inf")

    def is_unread(self, now: float) -> bool:
        """Return whether no client has read the stream for so long that prefetching stops."""
        return now > self._read_until

    def batch_bytes(self, remotes: int, *, filtered: bool = False) -> int:
        """Return the size of batches for a stream of ``remotes``, whatever other streams hold.

        ``filtered`` is whether the stream's events are distributed to filters.
        """
        return (self._filtered if filtered else self._prefetch).batch_bytes(remotes)

    def may_read(
        self, buffered: int, all_buffered: int, remotes: int, *, filtered: bool = False
    ) -> bool:
        """Return whether the budgets allow another batch of a remote with ``buffered`` bytes.

        A remote with an empty buffer always may, so the gate holder never waits for a client.
        ``filtered`` is whether the stream's events are distributed to filters.
        """
        if buffered and self._memory.short:
            return False
        if buffered and all_buffered > self._ahead and not filtered:
            return False
        prefetch = self._filtered if filtered else self._prefetch
        return prefetch.allows(buffered, all_buffered, remotes)

    def nudge_delay(self, now: float) -> float:
        """Return the time to wait before the members that keep events back are nudged."""
        limits = self._limits
        # If events arrive quickly, most members get past them by themselves.
        least = limits.await_gate if self.pace.active(now) else 0.0
        return max(limits.nudge_delay, least)

    def wait(
        self,
        policy: "AwaitPolicy",
        *,
        needed: bool,
        due: bool,
        idle: bool,
        topology: bool,
        next_note: float | None,
    ) -> Wait:
        """Return the wait of a remote's next getMore.

        Args:
            policy: the wait times while events need the remote's promise.
            needed: whether events need the promise.
            due: whether the member's oplog is already past the promise, or is being nudged.
            idle: whether the last reply reached the end of the member's oplog.
            topology: whether the remote watches config.shards.
            next_note: the time until the member's next note, if the budgets allow no promise
                before it; else None.
        """
        limits = self._limits
        quiet = limits.await_quiet
        due = needed and due
        if needed and not limits.nudges:
            return Wait(min(quiet, policy.next_wait()))
        if topology and idle:
            # It has no events that could end a wait, so it need not wait on the config server.
            return Wait(policy.next_wait()) if due else Wait(limits.await_gate, rest=quiet)
        if not idle:
            # A getMore that waits cannot be distinguished from one that scans: keep the wait short.
            return Wait(min(quiet, limits.await_unknown))
        if next_note is not None:
            return Wait(min(quiet, policy.next_wait() if due else next_note))
        return Wait(quiet)


class Prefetch:
    """One stream's budget for reading ahead.

    Half of the stream's budget is divided evenly among the remotes: if the others used up the
    budget, a remote with an empty buffer would hold the gate and stop them all. The other half is
    for remotes that are ahead. ``divisor`` makes both budgets smaller.
    """

    __slots__ = ("_batch_target", "_half", "_remote_buffer")

    def __init__(self, limits: StreamSettings, divisor: int = 1) -> None:
        self._batch_target = limits.batch_target_bytes
        self._half = limits.stream_buffer_bytes // divisor // 2
        self._remote_buffer = limits.remote_buffer_bytes // divisor

    def batch_bytes(self, remotes: int) -> int:
        """Return the target size of batches, of which two fit into each remote's even share."""
        return max(1, min(self._batch_target, self._half // (2 * remotes)))

    def allows(self, buffered: int, all_buffered: int, remotes: int) -> bool:
        """Return whether a remote with ``buffered`` bytes may fetch another batch.

        ``all_buffered`` is the number of bytes buffered for all ``remotes``. A remote with an empty
        buffer always may. The gate holder's buffer is empty once the ready events have been taken,
        so the budget never stops the gate.
        """
        if not buffered:
            return True
        batch = self.batch_bytes(remotes)
        if buffered + batch > self._remote_buffer:
            return False
        if (buffered + batch) * remotes <= self._half:
            return True
        return all_buffered + batch * remotes <= self._half


class Pace:
    """The average interval between a stream's events."""

    __slots__ = ("_interval", "_last", "_limits")

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits
        self._interval = limits.active_for
        self._last = float("-inf")

    def event(self, now: float) -> None:
        """Record the arrival of a batch with events."""
        # A long pause is capped, since it does not predict the pace after it.
        passed = min(now - self._last, 2 * self._limits.active_for)
        self._interval += (passed - self._interval) / _AVERAGED
        self._last = now

    def active(self, now: float) -> bool:
        """Return whether events arrive in quick succession."""
        return max(self._interval, now - self._last) < self._limits.active_for

    def lively(self, now: float) -> bool:
        """Return whether an event has arrived within the last second."""
        return now - self._last < _LIVELY


class AwaitPolicy:
    """The wait time of one remote's getMores while events need its promise.

    It starts short and doubles with each getMore until the promise arrives.
    """

    __slots__ = ("_limits", "_repeated")

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits
        self._repeated = 0

    def next_wait(self) -> float:
        """Return the seconds that the next getMore may wait, and double them for the one after."""
        limits = self._limits
        seconds = limits.await_gate * (1 << min(self._repeated, 16))
        self._repeated += 1
        return min(limits.await_gate_max, seconds)

    def reset(self) -> None:
        """Start over with the shortest wait: the promise has arrived or is about to arrive."""
        self._repeated = 0


class ProbeBudget:
    """The time for which one progress cursor may keep its member busy.

    A progress cursor may use ``probe_share`` of the time in the long run, and ``probe_burst`` at
    once. Probes of an idle member cost next to nothing; those that scan much use up the budget.
    """

    __slots__ = ("_at", "_left", "_limits")

    def __init__(self, limits: StreamSettings, now: float) -> None:
        self._limits = limits
        self._left = limits.probe_burst
        self._at = now

    def spend(self, now: float, seconds: float) -> None:
        """Charge a probe that kept the member busy for ``seconds``."""
        self._fill(now)
        self._left -= seconds

    def affords(self, now: float) -> bool:
        """Return whether the budget allows another probe."""
        self._fill(now)
        return self._left > 0

    def _fill(self, now: float) -> None:
        earned = (now - self._at) * self._limits.probe_share
        self._left = min(self._limits.probe_burst, self._left + earned)
        self._at = now
