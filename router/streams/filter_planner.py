"""Where the filters of change streams are evaluated: on the shards, or in the router."""

from collections import Counter
from dataclasses import replace
from typing import Any, Final, Protocol

from router.change_stream.request import StreamRequest
from router.change_stream.traffic import Traffic
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.stream_settings import StreamSettings
from router.streams.failed_streams import FailedStreams
from router.streams.placement import ALWAYS, AUTO, NEVER, Placement, mode_of
from router.streams.shared_scans import RESTS, SharedScans
from router.streams.sources import Source

MOST_TRIED: Final = 200
"""Maximum of conditions that are tried on every event, of all filters on one scope: they cost an
event some 100 µs. Conditions that a required value finds do not count (docs/sharing.md)."""


class Servers(Protocol):
    """What is known of the servers that would evaluate the filters."""

    @property
    def undefined_is_null(self) -> bool:
        """Whether null equals undefined in their queries."""


class FilterPlanner:
    """Decides where filters are evaluated (docs/sharing.md); does no I/O.

    With many different filters on one scope the router reads it once and filters; a few are better
    off on the shards. The decision changes with hysteresis (``SharedScans``). After a failure of
    the unfiltered stream, clients do not enter it for a while (``FailedStreams``).
    """

    def __init__(self, limits: StreamSettings, failed: FailedStreams, servers: Servers) -> None:
        self._limits = limits
        self._failed = failed
        self._servers = servers
        self._scans = SharedScans(limits.share_filters_from, limits.share_filters_hold)
        self._tried: Counter[bytes] = Counter()
        """The conditions of each scan's different filters that are tried on every event."""

    def place(self, placement: Placement) -> None:
        """Decide whether the router may evaluate the request's filter; does not count a reader."""
        limits, request = self._limits, placement.own.request
        mode = mode_of(request, "shareFilters", limits.share_filters) if limits.share else NEVER
        placement.mode = mode
        placement.reason = _refusal(request, mode)
        if placement.reason:
            return
        undefined_is_null = self._servers.undefined_is_null
        try:
            wanted = compile_filter(request.stages, undefined_is_null=undefined_is_null)
        except Declined as declined:
            placement.reason = str(declined)
            return
        whole = Source(replace(request, stages=()), wanted)
        more = 0 if self._scans.has(whole.key, wanted.identity) else wanted.tried
        if more and self._tried[whole.key] + more > MOST_TRIED:
            placement.reason = (
                f"the filters of its scope have {self._tried[whole.key]} conditions that are tried "
                f"on every event, with this filter more than {MOST_TRIED}"
            )
            return
        placement.filter, placement.whole = wanted, whole

    def join(self, placement: Placement) -> None:
        """Count a reader."""
        whole = placement.whole
        if whole is not None and whole.filter is not None:
            if not self._scans.has(whole.key, whole.filter.identity):
                self._tried[whole.key] += whole.filter.tried
            begins = placement.mode == AUTO
            self._scans.join(whole.key, whole.filter.identity, begins=begins)

    def leave(self, placement: Placement) -> None:
        """Stop counting a reader."""
        whole = placement.whole
        if whole is not None and whole.filter is not None:
            self._scans.leave(whole.key, whole.filter.identity)
            if not self._scans.has(whole.key, whole.filter.identity):
                self._tried[whole.key] -= whole.filter.tried
                if not self._tried[whole.key]:
                    del self._tried[whole.key]

    def shares(self, placement: Placement, now: float, traffic: Traffic | None = None) -> bool:
        """Return whether the router should evaluate the filter.

        ``traffic`` is that of the stream that it reads now, where that is shared.
        """
        whole = placement.whole
        if whole is None:
            return False
        if whole.key != placement.source.key and self._failed.avoids(whole.key, now):
            return False
        if placement.mode == ALWAYS:
            return True
        known = traffic if whole.key == placement.source.key else None
        return self._scans.is_shared(whole.key, now, known)

    def explain(self, placement: Placement, now: float) -> dict[str, Any]:
        """Return where a filter is evaluated, and why, for explain."""
        reason = placement.reason
        if placement.whole is not None:
            count = self._scans.count(placement.whole.key)
            reason = f"{count} different filters are read, shareFiltersFrom is "
            reason += str(self._limits.share_filters_from)
            if failure := self._failed.explain(placement.whole.key, now):
                reason = failure
            elif placement.mode == ALWAYS:
                reason = "shareFilters is always"
            elif self._scans.rests(placement.whole.key, now):
                reason = RESTS
        return {
            "evaluatedBy": "router" if self.shares(placement, now) else "shards",
            "shareFilters": placement.mode,
            "reason": reason,
        }


def _refusal(request: StreamRequest, mode: str) -> str:
    """Return why the shards must evaluate the filter, without regard to its stages."""
    if not request.stages:
        return "it has no filter"
    if mode == NEVER:
        return "shareFilters is never"
    if request.extras.get("collation") is not None:
        return "it has a collation"
    if request.passthrough_to_shard is not None:
        return "it reads one shard"
    if request.starts_after_invalidate:
        # Whether a shard's invalidate is swallowed depends on what its filter lets through.
        return "it starts after an invalidate"
    return ""
