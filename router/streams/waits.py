"""Wait times of the remotes' getMores on their members (docs/design.md, section 9)."""

import structlog
from bson.timestamp import Timestamp

from router.change_stream.merged_stream import MergedStream
from router.change_stream.resume_token import cluster_time_of
from router.stream_settings import StreamSettings
from router.streams.idle_members import IdleMembers
from router.streams.nudger import Nudger
from router.streams.pace import Pace
from router.streams.remote import Remote

log = structlog.get_logger()


class Waits:
    """Decides, after each batch of a stream's remote, how long its next getMore waits.

    A getMore waits long, since events end the wait. An event that other members keep back needs
    their promises at once, which progress cursors report. While progress cursors or notes are out
    of budget, a getMore ends when the next note is done, so that there is one getMore per note.
    """

    def __init__(
        self,
        stream: MergedStream,
        nudger: Nudger,
        limits: StreamSettings,
        pace: Pace,
        idle: IdleMembers,
    ) -> None:
        self._stream = stream
        self._nudger = nudger
        self._limits = limits
        self._pace = pace
        self._idle = idle

    def keeps_back(self, number: int) -> Timestamp | None:
        """Return the time that the remote's promise must pass so that others can go on, or None.

        A removed shard also holds the gate, until its promise has passed its removal.
        """
        waiting, promise = self._stream.waiting_for, self._stream.promise(number)
        if waiting is not None and (promise is None or promise < waiting.latest_key):
            return waiting.latest
        return next((each.latest for each in self._stream.leaving if each.remote == number), None)

    def decide(self, number: int, remote: Remote, latest: Timestamp | None, now: float) -> None:
        """Set the wait of the remote's next getMore, or pause the remote before it.

        ``latest`` is the result of ``keeps_back``.
        """
        cursor, limits = remote.cursor, self._limits
        if cursor is None:
            return
        self._check_progress(number, remote, now)
        if latest is None:
            remote.policy.reset()
            remote.nudge.shown()
        coming = latest is not None and self._promise_is_due(number, remote)
        seconds = limits.await_quiet
        if latest is not None and not limits.nudges:
            seconds = min(seconds, remote.policy.next_wait())
        elif remote.topology and remote.idle:
            # It has no events that could end a wait, so it need not wait on the config server.
            seconds = remote.policy.next_wait() if coming else limits.await_gate
            if not coming:
                self._idle.rest(remote, limits.await_quiet)
        elif not remote.idle:
            # A getMore that waits cannot be distinguished from one that scans: keep the wait short.
            seconds = min(seconds, limits.await_unknown)
        elif self._is_paced(remote, now):
            tick = self._nudger.next_tick(remote.target, remote.host, now) - now
            seconds = min(seconds, remote.policy.next_wait() if coming else tick)
        cursor.set_await(seconds)

    def _promise_is_due(self, number: int, remote: Remote) -> bool:
        """Return whether the member's oplog is past the remote's promise, or a nudge is sent."""
        promise = self._stream.promise(number)
        return remote.nudge.begun or promise is None or remote.reached > cluster_time_of(promise)

    def _is_paced(self, remote: Remote, now: float) -> bool:
        """Return whether events need promises more often than the budgets allow."""
        if not self._pace.lively(now):
            return False
        noted = self._limits.nudges and (
            self._nudger.ready_at(remote.target, remote.host, now) > now
        )
        return noted or not remote.probes.affords(now)

    def _check_progress(self, number: int, remote: Remote, now: float) -> None:
        """Leave a member whose promise does not advance although its replica set has."""
        promise = self._stream.promise(number)
        if remote.cursor is None or promise is None or not remote.overdue.waiting:
            return
        remote.overdue.promised(cluster_time_of(promise))
        if remote.idle and remote.overdue.give_up(now):
            log.warning(
                "member is left: it does not show what its replica set has written",
                target=remote.target,
                address=remote.cursor.address,
            )
            remote.cursor.leave_member()
