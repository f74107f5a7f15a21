"""Which streams of collections and databases are read as parts of a wider one."""

from dataclasses import replace
from typing import Any, Final

from router.change_stream.namespace import Namespace
from router.change_stream.request import Scope, StreamRequest
from router.change_stream.traffic import Traffic
from router.stream_settings import StreamSettings
from router.streams.failed_streams import FailedStreams
from router.streams.placement import ALWAYS, AUTO, NEVER, Placement, mode_of
from router.streams.shared_scans import RESTS, SharedScans
from router.streams.sources import Source

_OPTIONS: Final = {
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

_EXTRAS: Final = frozenset({"comment", "let", "allowDiskUse"})


class ScopePlanner:
    """Decides which streams are read as parts of a wider one (docs/sharing.md); does no I/O.

    A collection's stream can be a part of its database's stream or of the cluster's, a database's
    a part of the cluster's. ``shareScopesFrom`` different collections of one database, or so many
    different databases, share a wider stream. The decision changes with hysteresis
    (``SharedScans``). After a failure of a wider stream, clients do not enter it for a while
    (``FailedStreams``).
    """

    def __init__(self, limits: StreamSettings, failed: FailedStreams) -> None:
        self._limits = limits
        self._failed = failed
        self._scans = SharedScans(limits.share_scopes_from, limits.share_filters_hold)

    def place(self, placement: Placement) -> None:
        """Find the wider streams of a request whose filter has been looked at; counts no reader."""
        limits, request = self._limits, placement.own.request
        mode = mode_of(request, "shareScopes", limits.share_scopes) if limits.share else NEVER
        placement.scope_mode = mode
        placement.scope_reason = _refusal(placement, mode)
        if not placement.scope_reason:
            placement.wider = _wider(request, placement)

    def join(self, placement: Placement) -> None:
        """Count a reader."""
        for source, part in _parts(placement):
            self._scans.join(source.key, part, begins=placement.scope_mode == AUTO)

    def leave(self, placement: Placement) -> None:
        """Stop counting a reader."""
        for source, part in _parts(placement):
            self._scans.leave(source.key, part)

    def source(
        self, placement: Placement, now: float, traffic: Traffic | None = None
    ) -> Source | None:
        """Return the wider stream that should serve a client, or None.

        ``traffic`` is that of the stream that it reads now, where that is shared.
        """
        always = placement.scope_mode == ALWAYS
        for source in placement.wider[-1:] if always else placement.wider:
            reads_it = source.key == placement.source.key
            if not reads_it and self._failed.avoids(source.key, now):
                continue
            known = traffic if reads_it else None
            if always or self._scans.is_shared(source.key, now, known):
                return source
        return None

    def explain(self, placement: Placement, now: float) -> dict[str, Any] | None:
        """Return which stream is read, and why, for explain.

        None where scopes are not shared, by the parameter and by the stream's comment.
        """
        if placement.scope_mode == self._limits.share_scopes == NEVER:
            return None
        source = self.source(placement, now) or placement.own
        reason = placement.scope_reason
        if placement.wider:
            counts = [self._scans.count(each.key) for each in placement.wider]
            reason = f"{max(counts)} different scopes are read, shareScopesFrom is "
            reason += str(self._limits.share_scopes_from)
            failures = [self._failed.explain(each.key, now) for each in placement.wider]
            if source is placement.own and any(failures):
                reason = next(filter(None, failures))
            elif placement.scope_mode == ALWAYS:
                reason = "shareScopes is always"
            elif any(self._scans.rests(each.key, now) for each in placement.wider):
                reason = RESTS
        return {
            "readFrom": source.request.namespace,
            "shareScopes": placement.scope_mode,
            "reason": reason,
        }


def _refusal(placement: Placement, mode: str) -> str:
    """Return why a stream has no wider one, or an empty string."""
    request = placement.own.request
    if request.scope is Scope.CLUSTER:
        return "it reads the whole cluster"
    if mode == NEVER:
        return "shareScopes is never"
    if request.passthrough_to_shard is not None:
        return "it reads one shard"
    if request.starts_after_invalidate:
        return "it starts after an invalidate"
    for name, value in request.change_stream_options.items():
        if value not in _OPTIONS.get(name, ()):
            return f"it has the option {name}"
    for name in request.extras:
        if name not in _EXTRAS:
            return f"it has {name}"
    if request.stages and placement.filter is None:
        return f"its filter is left to the shards: {placement.reason}"
    return ""


def _wider(request: StreamRequest, placement: Placement) -> tuple[Source, ...]:
    """Return the wider streams, widest first."""
    database = request.database.encode()
    collection = None if request.collection is None else request.collection.encode()
    namespace = Namespace(database, collection)
    options = {**request.change_stream_options, "allChangesForCluster": True}
    cluster = replace(
        request,
        scope=Scope.CLUSTER,
        database="admin",
        collection=None,
        namespace="admin.$cmd.aggregate",
        change_stream_options=options,
        stages=(),
    )
    sources = [Source(cluster, placement.filter, namespace)]
    if collection is not None:
        whole = replace(
            request,
            scope=Scope.DATABASE,
            collection=None,
            namespace=f"{request.database}.$cmd.aggregate",
            stages=(),
        )
        sources.append(Source(whole, placement.filter, namespace))
    return tuple(sources)


def _parts(placement: Placement) -> list[tuple[Source, bytes]]:
    """Return the wider streams with the part that counts for each: a database or a collection."""
    parts: list[tuple[Source, bytes]] = []
    for source in placement.wider:
        namespace = source.namespace
        if namespace is not None:
            of_cluster = source.request.scope is Scope.CLUSTER
            parts.append(
                (source, namespace.database if of_cluster else namespace.collection or b"")
            )
    return parts
