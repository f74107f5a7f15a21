"""Members that keep events back because nothing is written to them: nudged, asked at once after."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from router.change_stream.actions import Waiting
from router.change_stream.merged_stream import MergedStream
from router.cursors.limits import StreamLimits
from router.cursors.nudge import Nudger
from router.cursors.remote import Remote

_NUDGE_AGAIN = 0.1
"""Seconds after which a nudge that has not shown in a promise is repeated."""


class IdleMembers:
    """Gets the members of one stream past what waits for them (docs/design.md, section 9).

    ``lingering`` is set while nobody reads the stream: nothing is nudged then. ``go_on`` is called
    when a remote that rested may be asked again.
    """

    def __init__(
        self,
        stream: MergedStream,
        remotes: Mapping[int, Remote],
        nudger: Nudger,
        limits: StreamLimits,
        go_on: Callable[[], None],
    ) -> None:
        self.lingering = False
        self._stream = stream
        self._remotes = remotes
        self._nudger = nudger
        self._limits = limits
        self._go_on = go_on
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def look(self) -> None:
        """Nudge in ``nudge_delay`` those that still keep something back by then."""
        stream = self._stream
        if self._timer is None and (stream.waiting_for is not None or stream.leaving):
            self._timer = self._loop.call_later(self._limits.nudge_delay, self._nudge)

    def rest(self, remote: Remote, seconds: float) -> None:
        """Do not ask ``remote`` for ``seconds``, or until its member has been nudged."""
        if remote.cursor is not None:
            remote.rouse()
            remote.cursor.pause()
            remote.rest = self._loop.call_later(seconds, self._rested, remote)

    def close(self) -> None:
        """Nudge nobody any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _rested(self, remote: Remote) -> None:
        remote.rouse()
        if not self.lingering:
            self._go_on()

    def _nudge(self) -> None:
        self._timer = None
        if self._closed or self.lingering:
            return
        for waiting in (*self._stream.lagging, *self._stream.leaving):
            remote = self._remotes.get(waiting.remote)
            if remote is not None and not remote.nudged:
                self._get_past(remote, waiting)

    def _get_past(self, remote: Remote, waiting: Waiting) -> None:
        """Nudge the member unless it is there already, and have its cursor asked at once."""
        now, limits = self._loop.time(), self._limits
        nudges = limits.nudge and remote.reached <= waiting.latest
        if not nudges and remote.rest is not None:
            self._rested(remote)
        if waiting.latest <= remote.nudged_past and now < remote.nudge_again:
            return
        remote.nudged_past, remote.nudge_again = waiting.latest, now + _NUDGE_AGAIN
        if remote.cursor is not None and remote.idle:
            remote.cursor.set_await(limits.await_gate)
            remote.cursor.hurry(limits.hurry_worth)
        if nudges:
            remote.nudged = True
            remote.nudges += 1
            done = partial(self._nudged, remote)
            self._nudger.nudge(remote.target, remote.host, waiting.latest, done)

    def _nudged(self, remote: Remote) -> None:
        remote.nudged = False
        remote.nudge_again = self._loop.time() + _NUDGE_AGAIN
        remote.policy.nudged()
        if remote.cursor is not None:
            remote.cursor.set_await(self._limits.await_gate)
        if remote.rest is not None:
            self._rested(remote)
