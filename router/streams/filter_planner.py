"""Where the filters of change streams are evaluated: on the shards, or in the router."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from router.change_stream.request import StreamRequest
from router.filters.match_compiler import Declined
from router.filters.stream_filter import StreamFilter, compile_filter
from router.stream_settings import StreamSettings

AUTO, ALWAYS, NEVER = "auto", "always", "never"
MODES: Final = (AUTO, ALWAYS, NEVER)

_IN_COMMENT: Final = re.compile(r"\bshareFilters=(auto|always|never)\b")
_FRACTION_TO_STAY: Final = 0.5
"""A shared scan goes on with few readers if they get at least this fraction of its events."""


class _Scope:
    """The filtered streams that one unfiltered stream could serve."""

    __slots__ = ("below_since", "filters", "shared")

    def __init__(self) -> None:
        self.filters: Counter[bytes] = Counter()
        self.shared = False
        self.below_since: float | None = None


@dataclass(slots=True)
class Placement:
    """Where one client's filter is evaluated, and why.

    ``whole`` is the request for the unfiltered stream from which the router can filter; None if
    the shards must filter, for the ``reason`` given. ``failed``: the unfiltered stream failed,
    perhaps by an event that the filter leaves out, so the shards filter from then on.
    """

    request: StreamRequest
    mode: str
    reason: str
    whole: StreamRequest | None = None
    filter: StreamFilter | None = None
    scope: bytes = b""
    failed: bool = False


class FilterPlanner:
    """Decides where filters are evaluated (docs/sharing.md); does no I/O.

    With many different filters on one scope the router reads it once and filters; a few are better
    off on the shards. The decision changes with hysteresis: sharing begins with the
    ``share_filters_from``-th filter, and ends when there have been less than half as many for
    ``share_filters_hold`` seconds, unless they let most events through.
    """

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits
        self._scopes: dict[bytes, _Scope] = {}

    def place(self, request: StreamRequest) -> Placement:
        """Return the placement of a request; does not count it as a reader."""
        mode = _mode(request, self._limits.share_filters) if self._limits.share else NEVER
        if not request.stages:
            return Placement(request, mode, "it has no filter")
        if mode == NEVER:
            return Placement(request, mode, "shareFilters is never")
        if request.extras.get("collation") is not None:
            return Placement(request, mode, "it has a collation")
        if request.passthrough_to_shard is not None:
            return Placement(request, mode, "it reads one shard")
        try:
            stream_filter = compile_filter(request.stages)
        except Declined as declined:
            return Placement(request, mode, str(declined))
        whole = replace(request, stages=())
        return Placement(request, mode, "", whole, stream_filter)

    def join(self, placement: Placement, scope: bytes, now: float) -> None:
        """Count a reader; ``scope`` identifies the unfiltered stream."""
        placement.scope = scope
        if placement.filter is None:
            return
        state = self._scopes.setdefault(scope, _Scope())
        state.filters[placement.filter.identity] += 1
        if placement.mode == AUTO and len(state.filters) >= self._limits.share_filters_from:
            state.shared = True
            state.below_since = None

    def leave(self, placement: Placement) -> None:
        """Stop counting a reader."""
        state = self._scopes.get(placement.scope)
        if placement.filter is None or state is None:
            return
        identity = placement.filter.identity
        state.filters[identity] -= 1
        if not state.filters[identity]:
            del state.filters[identity]
        if not state.filters:
            del self._scopes[placement.scope]

    def shares(self, placement: Placement, now: float, let_through: float = 0.0) -> bool:
        """Return whether the router should evaluate the filter.

        ``let_through`` is the fraction of the shared stream's events that filters let through,
        where it is read already.
        """
        if placement.filter is None or placement.failed:
            return False
        if placement.mode == ALWAYS:
            return True
        state = self._scopes.get(placement.scope)
        if state is None or not state.shared:
            return False
        if len(state.filters) * 2 >= self._limits.share_filters_from or (
            len(state.filters) > 1 and let_through >= _FRACTION_TO_STAY
        ):
            state.below_since = None
        elif state.below_since is None:
            state.below_since = now
        elif now - state.below_since >= self._limits.share_filters_hold:
            state.shared = False
        return state.shared

    def explain(self, placement: Placement, now: float) -> dict[str, Any]:
        """Return where a filter is evaluated, and why, for explain."""
        state = self._scopes.get(placement.scope)
        count = 0 if state is None else len(state.filters)
        here = self.shares(placement, now)
        reason = placement.reason
        if placement.filter is not None:
            reason = f"{count} different filters are read, shareFiltersFrom is "
            reason += str(self._limits.share_filters_from)
            if placement.mode == ALWAYS:
                reason = "shareFilters is always"
        return {
            "evaluatedBy": "router" if here else "shards",
            "shareFilters": placement.mode,
            "reason": reason,
        }


def _mode(request: StreamRequest, default: str) -> str:
    """Return the mode that the stream's comment names, or the default."""
    comment = request.extras.get("comment")
    if isinstance(comment, str):
        found = _IN_COMMENT.search(comment)
        return default if found is None else found[1]
    if isinstance(comment, Mapping):
        named = comment.get("shareFilters")
        return named if named in MODES else default
    return default
