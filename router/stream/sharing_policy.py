"""The choice of the stream that serves a client (docs/sharing.md).

It depends on which streams can (``sources``), on how many different parts clients read of each
(``SharingDemand``), and on which ones have failed (``FailedStreams``). A client whose next events
a shared stream has dropped is moved by ``client_reader`` to what ``choose_source`` returns for it:
its own stream, if it is ``late``, until it has caught up.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Final, TypeVar

import structlog

from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.request.stream_request import StreamRequest
from router.stream.readers.fan_out import Traffic
from router.stream.sources import (
    ALWAYS,
    AUTO,
    NEVER,
    Source,
    mode_of,
    why_not_filters,
    why_not_scopes,
    wider_streams,
)
from router.stream_settings import StreamSettings
from shard_client.errors import RESUMABLE_LABEL, CommandError, ErrorCode

log = structlog.get_logger()

_PASSES_TO_STAY: Final = 0.5
"""A stream is shared on by few readers if an event passes at least so many of their filters on
average: streams of their own would send it so often."""

_BYTES_OF_A_SCAN: Final = 2000
"""Bytes of an event that a shard sends for less than another scan of its oplog entry costs it
(docs/performance.md#streams-of-many-collections)."""

_PAUSE_IN_HOLDS: Final = 60
"""A stream that costs more than it saves is shared again after so many times ``hold``."""

MOST_PAUSED: Final = 1000
"""Maximum of paused streams that are remembered, and of shared ones that have lost their readers;
the latest are kept."""


_T = TypeVar("_T")


def _remember(memory: dict[bytes, _T], key: bytes, value: _T, most: int) -> None:
    """Set a stream's value; drop that which was set first if there are more than ``most``."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]


class ShareableStream:
    """A stream that clients could share: the readers of each part, and the parts' costs.

    It is shared before ``shared_until``: minus infinity for not at all, infinity for no known end.
    """

    def __init__(self) -> None:
        self.parts: Counter[bytes] = Counter()
        self.cost = 0
        self.shared_until = -inf
        self.let_through = 0.0


class SharingDemand:
    """The different parts that clients read of each stream that they could share; does no I/O.

    A stream is shared from the ``least``-th part on, and no longer when there have been less than
    half as many for ``hold`` seconds, unless two or more together get half as many events as it
    has. It is paused when the shards send much more than the parts need, which costs more than the
    streams that it saves, and when the router has been behind for ``hold`` seconds with events that
    few readers get, since the shards can leave these out. This is remembered, too, if all readers
    leave and come back, but keeps no stream open without them. Streams are named by their keys
    (``Source.key``); all times are on the loop's clock.
    """

    def __init__(self, least: int, hold: float) -> None:
        self.least = least
        self._hold = hold
        self._streams: dict[bytes, ShareableStream] = {}
        self._left: dict[bytes, ShareableStream] = {}
        """The streams that were shared when their last reader left."""
        self._paused_until: dict[bytes, float] = {}

    def join(self, key: bytes, part: bytes, now: float, *, cost: int = 0, begins: bool) -> None:
        """Count a reader of ``part``; ``begins`` is whether the count may begin the sharing.

        ``cost`` is the part's, the same for all of its readers.
        """
        state = self._streams.setdefault(key, self._left.pop(key, ShareableStream()))
        state.cost += 0 if part in state.parts else cost
        state.parts[part] += 1
        if begins and len(state.parts) >= self.least:
            state.shared_until = inf
        self._begin_or_end(state, now)

    def leave(self, key: bytes, part: bytes, now: float, *, cost: int = 0) -> None:
        """Stop counting a reader."""
        state = self._streams[key]
        state.parts[part] -= 1
        if not state.parts[part]:
            del state.parts[part]
            state.cost -= cost
        self._begin_or_end(state, now)
        if not state.parts:
            del self._streams[key]
            if now < state.shared_until:
                _remember(self._left, key, state, MOST_PAUSED)

    def record(self, key: bytes, traffic: Traffic, now: float) -> None:
        """Record the recent traffic of a stream that is read and shared."""
        state = self._streams.get(key)
        if state is None:
            return
        state.let_through = traffic.let_through
        costly = traffic.unwatched_bytes > len(state.parts) * _BYTES_OF_A_SCAN
        behind = traffic.behind_since is not None and traffic.behind_since <= now - self._hold
        late = behind and state.let_through < _PASSES_TO_STAY
        if (costly or late) and self.is_shared(key, now):
            self.pause(key, now + _PAUSE_IN_HOLDS * self._hold)
            state.let_through = 0.0
        self._begin_or_end(state, now)

    def pause(self, key: bytes, until: float) -> None:
        """Do not share the stream for a while."""
        _remember(self._paused_until, key, until, MOST_PAUSED)

    def _begin_or_end(self, state: ShareableStream, now: float) -> None:
        """Begin or end the time for which a stream with few parts is shared on."""
        count = len(state.parts)
        few = count * 2 < self.least
        if few and (count < 2 or state.let_through < _PASSES_TO_STAY):
            state.shared_until = min(state.shared_until, now + self._hold)
        elif now < state.shared_until:
            state.shared_until = inf

    def of(self, key: bytes) -> ShareableStream:
        """Return what is counted of a stream, which may have no readers."""
        return self._streams.get(key) or self._left.get(key) or ShareableStream()

    def is_shared(self, key: bytes, now: float) -> bool:
        """Return whether the parts of a stream should share it."""
        return now < self.of(key).shared_until and not self.is_paused(key, now)

    def is_paused(self, key: bytes, now: float) -> bool:
        """Return whether the stream has cost more than it saved, and is not shared for a while."""
        return now < self._paused_until.get(key, -inf)


FIRST_PAUSE: Final = 10.0
"""Seconds for which clients avoid a shared stream after its first failure."""

LONGEST_PAUSE: Final = 3600.0
"""Upper bound of the pause, which doubles with each failure, in seconds. If none follows for so
long after the end of a pause, the next pause is the first again."""

MOST_FAILED: Final = 1000
"""Maximum of failed streams that are remembered; the latest to fail are kept."""


@dataclass(slots=True)
class _Failure:
    code_name: str
    at: float
    until: float


class FailedStreams:
    """Remembers for a while which shared streams have failed; does no I/O.

    An event that most of its clients would not receive may end a shared stream, and the next such
    event would end it again. Clients read streams of their own meanwhile, and do not enter it for a
    time that doubles with each failure, from ``FIRST_PAUSE`` to ``LONGEST_PAUSE``. A resumable
    error, such as a shard's outage, does not double it: it says nothing about events. Streams are
    named by their keys (``Source.key``); all times are on the loop's clock.
    """

    def __init__(self) -> None:
        self._failures: dict[bytes, _Failure] = {}

    def add(self, key: bytes, error: CommandError, entered: float, now: float) -> bool:
        """Record that a stream has failed for a reader that entered it at the time ``entered``.

        Readers that entered it before its last failure report that failure once more. Return
        whether this one is the first to report it.
        """
        last = self._failures.pop(key, None)
        first = True
        if last is None or now - last.until > LONGEST_PAUSE:
            last = _Failure(error.code_name, now, now + FIRST_PAUSE)
        elif entered > last.at:
            pause = (last.until - last.at) * (1 if RESUMABLE_LABEL in error.labels else 2)
            last = _Failure(error.code_name, now, now + min(pause, LONGEST_PAUSE))
        else:
            first = False
        _remember(self._failures, key, last, MOST_FAILED)
        return first

    def why_avoided(self, key: bytes, now: float) -> str:
        """Return why no client enters the stream now, or an empty string.

        It names the error alone: its message may quote an event of a collection that the client
        may not read.
        """
        failure = self._failures.get(key)
        if failure is None or now >= failure.until:
            return ""
        seconds = ceil(failure.until - now)
        return f"the shared stream failed and is not read for {seconds} s: {failure.code_name}"


@dataclass(slots=True)
class WayOfSharing:
    """One way of sharing: the streams that can serve in it, or the ``reason`` why none can.

    ``parameter`` sets the ``mode``; ``demand`` counts the parts of all such streams.
    """

    parameter: str
    mode: str
    demand: SharingDemand
    sources: tuple[Source, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class Candidates:
    """The streams that can serve one client.

    ``own`` has exactly its events. ``scopes`` has streams of wider scopes, widest first, and is
    preferred to ``filters``, which has that of its own scope without a filter.
    """

    own: Source
    filters: WayOfSharing
    scopes: WayOfSharing

    @property
    def ways(self) -> tuple[WayOfSharing, WayOfSharing]:
        """Both ways of sharing, the preferred one first."""
        return self.scopes, self.filters

    def way_of(self, source: Source) -> WayOfSharing:
        """Return the way in which ``source`` is shared, which is not the client's own stream."""
        return self.scopes if source.is_wider else self.filters


MOST_TRIED: Final = 200
"""Maximum of conditions that are tried on every event, of all filters on one scope: they cost an
event some 100 µs. Conditions that a required value finds do not count (docs/sharing.md)."""


class SharingPolicy:
    """Chooses between a client's own stream and those that serve others as well; does no I/O.

    With many different filters on one scope the router reads it once and filters; a few are better
    off on the shards. A collection's stream can be a part of its database's stream or of the
    cluster's, a database's a part of the cluster's. Clients that are counted by ``join`` begin and
    end the sharing (``SharingDemand``); a stream that has failed is not entered for a while
    (``FailedStreams``). All times are on the loop's clock.
    """

    def __init__(self, settings: StreamSettings, undefined_is_null: Callable[[], bool]) -> None:
        """``undefined_is_null`` returns whether null equals undefined in the servers' queries."""
        self._settings = settings
        self._undefined_is_null = undefined_is_null
        self._failed = FailedStreams()
        self._filters = SharingDemand(settings.share_filters_from, settings.share_filters_hold)
        self._scopes = SharingDemand(settings.share_scopes_from, settings.share_filters_hold)
        self.clients = 0
        """The clients that are counted."""

    def candidates(self, request: StreamRequest) -> Candidates:
        """Return the streams that can serve ``request``; counts no client."""
        settings = self._settings
        filters = self._way(request, "shareFilters", settings.share_filters, self._filters)
        scopes = self._way(request, "shareScopes", settings.share_scopes, self._scopes)
        filters.reason = why_not_filters(request, filters.mode)
        if not filters.reason:
            try:
                filters.sources = (self._unfiltered(request),)
            except Declined as declined:
                filters.reason = str(declined)
        scopes.reason = why_not_scopes(request, scopes.mode)
        if request.stages and not filters.sources and not scopes.reason:
            scopes.reason = f"its filter is left to the shards: {filters.reason}"
        if not scopes.reason:
            wider = wider_streams(request, filters.sources[0].filter if request.stages else None)
            scopes.sources = wider[-1:] if scopes.mode == ALWAYS else wider
        return Candidates(Source(request), filters, scopes)

    def _way(
        self, request: StreamRequest, parameter: str, default: str, demand: SharingDemand
    ) -> WayOfSharing:
        mode = mode_of(request, parameter, default) if self._settings.share else NEVER
        return WayOfSharing(parameter, mode, demand)

    def _unfiltered(self, request: StreamRequest) -> Source:
        """Return the request's scope without its filter; raises Declined."""
        compiled = compile_filter(request.stages, undefined_is_null=self._undefined_is_null())
        source = Source(replace(request, stages=()), compiled)
        shared = self._filters.of(source.key)
        known = source.part in shared.parts
        if source.cost and not known and shared.cost + source.cost > MOST_TRIED:
            raise Declined(
                f"the filters of its scope have {shared.cost} conditions that are tried "
                f"on every event, with this filter more than {MOST_TRIED}"
            )
        return source

    def join(self, candidates: Candidates, now: float) -> None:
        """Count a client."""
        self.clients += 1
        for way in candidates.ways:
            for source in way.sources:
                begins = way.mode == AUTO
                way.demand.join(source.key, source.part, now, cost=source.cost, begins=begins)

    def leave(self, candidates: Candidates, now: float) -> None:
        """Stop counting a client."""
        self.clients -= 1
        for way in candidates.ways:
            self._leave(way, now)

    def _leave(self, way: WayOfSharing, now: float) -> None:
        for source in way.sources:
            way.demand.leave(source.key, source.part, now, cost=source.cost)

    def choose_source(
        self, candidates: Candidates, current: Source | None, now: float, *, late: bool = False
    ) -> Source:
        """Return the stream that should serve a client, which reads ``current`` now.

        One that begins ``late``, far behind the newest events, shares only what is always shared.
        """
        for way in candidates.ways:
            for source in way.sources:
                reads_it = current is not None and source.key == current.key
                if not reads_it and self._failed.why_avoided(source.key, now):
                    continue
                if way.mode == ALWAYS or (not late and way.demand.is_shared(source.key, now)):
                    return source
        return candidates.own

    def record_failure(
        self, candidates: Candidates, source: Source, error: CommandError, begun: float, now: float
    ) -> None:
        """Record that ``source``, which a client tried or began to read at ``begun``, has failed.

        No client enters it for a while. Where the error concerns this client alone (it has as many
        streams as it may, or its filter needs too much of an event), this client never does.
        """
        if error.code == ErrorCode.TemporarilyUnavailable:
            way = candidates.way_of(source)
            self._leave(way, now)
            which = "wider" if source.is_wider else "shared"
            way.sources, way.reason = (), f"the {which} stream was refused: {error}"
        elif self._failed.add(source.key, error, begun, now):
            log.warning(
                "a shared stream is avoided",
                namespace=source.request.namespace,
                error=str(error),
                exc_info=error.__cause__,
            )

    def explain(self, request: StreamRequest, now: float) -> dict[str, Any]:
        """Return which stream would serve ``request``, where its filter runs, and why.

        Empty for a stream without stages where ``shareScopes`` is never.
        """
        candidates = self.candidates(request)
        chosen = self.choose_source(candidates, None, now)
        explained: dict[str, Any] = {}
        if request.stages:
            reason = self._reason(candidates.filters, chosen, now)
            explained["filter"] = {
                "evaluatedBy": "shards" if chosen is candidates.own else "router",
                "shareFilters": candidates.filters.mode,
                "reason": "a wider stream is read" if chosen.is_wider else reason,
            }
        if (candidates.scopes.mode, self._settings.share_scopes) != (NEVER, NEVER):
            wider = chosen if chosen.is_wider else candidates.own
            explained["scope"] = {
                "readFrom": wider.request.namespace,
                "shareScopes": candidates.scopes.mode,
                "reason": self._reason(candidates.scopes, chosen, now),
            }
        return explained

    def _reason(self, way: WayOfSharing, chosen: Source, now: float) -> str:
        """Return why ``chosen`` is read, as far as one way of sharing is concerned."""
        if not way.sources:
            return way.reason
        keys, demand = [source.key for source in way.sources], way.demand
        failures = filter(None, (self._failed.why_avoided(key, now) for key in keys))
        if chosen not in way.sources and (failure := next(failures, "")):
            return failure
        if way.mode == ALWAYS:
            return f"{way.parameter} is always"
        if any(demand.is_paused(key, now) for key in keys):
            return "the shared stream read much more than its readers"
        what = way.parameter.removeprefix("share").lower()
        count = max(len(demand.of(key).parts) for key in keys)
        return f"{count} different {what} are read, {way.parameter}From is {demand.least}"
