"""The choice of the stream that serves a client (docs/sharing.md).

It depends on which streams can (``sources``), on how many different parts clients read of each
(``sharing_demand``), and on which ones have failed (``failed_streams``). A client whose next events
a shared stream has dropped is moved by ``client_reader`` to what ``choose_source`` returns for it:
its own stream, if it is ``late``, until it has caught up.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.request.stream_request import StreamRequest
from router.stream.failed_streams import FailedStreams
from router.stream.sharing_demand import SharingDemand
from router.stream.sources import Source, wider_streams
from router.stream_settings import StreamSettings
from shard_client.errors import CommandError, ErrorCode

log = structlog.get_logger()

_AUTO, _ALWAYS, _NEVER = "auto", "always", "never"
_MODES: Final = (_AUTO, _ALWAYS, _NEVER)

_IN_COMMENT: Final = re.compile(r"\b(shareFilters|shareScopes)=(auto|always|never)\b")

_SHAREABLE_OPTIONS: Final = {
    "fullDocument": ("default", "whenAvailable", None),
    "fullDocumentBeforeChange": ("off", "whenAvailable", None),
    "showRawUpdateDescription": (True, False),
    "showExpandedEvents": (False,),
    "showSystemEvents": (False,),
    "matchCollectionUUIDForUpdateLookup": (True, False),
}
"""The options and values with which a wider stream has exactly the narrower one's events.

A required image that is missing fails the wider stream, for another collection's event. Expanded
events of a database include those of its views, which a stream of that name does not have.
"""

_SHAREABLE_EXTRAS: Final = frozenset({"comment", "let", "allowDiskUse"})


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
        filters.reason = _why_not_filters(request, filters.mode)
        if not filters.reason:
            try:
                filters.sources = (self._unfiltered(request),)
            except Declined as declined:
                filters.reason = str(declined)
        scopes.reason = _why_not_scopes(request, scopes.mode)
        if request.stages and not filters.sources and not scopes.reason:
            scopes.reason = f"its filter is left to the shards: {filters.reason}"
        if not scopes.reason:
            wider = wider_streams(request, filters.sources[0].filter if request.stages else None)
            scopes.sources = wider[-1:] if scopes.mode == _ALWAYS else wider
        return Candidates(Source(request), filters, scopes)

    def _way(
        self, request: StreamRequest, parameter: str, default: str, demand: SharingDemand
    ) -> WayOfSharing:
        mode = _mode_of(request, parameter, default) if self._settings.share else _NEVER
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
                begins = way.mode == _AUTO
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
                if way.mode == _ALWAYS or (not late and way.demand.is_shared(source.key, now)):
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
        if (candidates.scopes.mode, self._settings.share_scopes) != (_NEVER, _NEVER):
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
        if way.mode == _ALWAYS:
            return f"{way.parameter} is always"
        if any(demand.is_paused(key, now) for key in keys):
            return "the shared stream read much more than its readers"
        what = way.parameter.removeprefix("share").lower()
        count = max(len(demand.of(key).parts) for key in keys)
        return f"{count} different {what} are read, {way.parameter}From is {demand.least}"


def _mode_of(request: StreamRequest, name: str, default: str) -> str:
    """Return the mode that the stream's comment names for the parameter ``name``, or the default.

    A comment is a string like "reporting; shareFilters=never" or a document with such a field. No
    comment overrides the default ``never``, which the operator has set.
    """
    if default == _NEVER:
        return _NEVER
    comment = request.extras.get("comment")
    if isinstance(comment, str):
        modes: dict[str, str] = dict(_IN_COMMENT.findall(comment))
        return modes.get(name, default)
    if isinstance(comment, Mapping):
        named = comment.get(name)
        return named if named in _MODES else default
    return default


def _why_not_filters(request: StreamRequest, mode: str) -> str:
    """Return why the shards must evaluate the filter, without regard to its stages."""
    if not request.stages:
        return "it has no filter"
    if mode == _NEVER:
        return "shareFilters is never"
    if request.extras.get("collation") is not None:
        return "it has a collation"
    # Whether a shard's invalidate is skipped depends on what its filter lets through.
    return _why_alone(request)


def _why_alone(request: StreamRequest) -> str:
    """Return why a stream is read for its own clients only, or an empty string."""
    if request.passthrough_to_shard is not None:
        return "it reads one shard"
    return "it starts after an invalidate" if request.starts_after_invalidate else ""


def _why_not_scopes(request: StreamRequest, mode: str) -> str:
    """Return why a stream has no wider one, without regard to its filter, or an empty string."""
    if request.of_cluster:
        return "it reads the whole cluster"
    if mode == _NEVER:
        return "shareScopes is never"
    if alone := _why_alone(request):
        return alone
    for name, value in request.change_stream_options.items():
        if value not in _SHAREABLE_OPTIONS.get(name, ()):
            return f"it has the option {name}"
    for name in request.extras:
        if name not in _SHAREABLE_EXTRAS:
            return f"it has {name}"
    return ""
