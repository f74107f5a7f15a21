"""The stream pool: identical streams share one set of remotes (docs/design.md#many-clients)."""

import asyncio
from collections.abc import Coroutine, Set
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.log_reader import LogReader, ReadableStream
from router.change_stream.remotes import ShardSpan
from router.change_stream.request import AtTime, Start, StreamRequest
from router.change_stream.resume_token import cluster_time_of
from router.change_stream.starting_point import StartingPoint, starting_point
from router.change_stream.views import View
from router.stream_settings import StreamSettings
from router.streams.admission import NOBODY, Payer
from router.streams.failed_streams import FailedStreams
from router.streams.filter_planner import FilterPlanner
from router.streams.open_streams import OpenStreams
from router.streams.placement import ALWAYS, Placement
from router.streams.scope_planner import ScopePlanner
from router.streams.shared_stream import SharedStream
from router.streams.sources import Source
from shard_client import spans
from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError

log = structlog.get_logger()

_LEAST_REPLY: Final = 64 * 1024


class _Beginning(NamedTuple):
    """A shared stream, entered, the time at which a client starts on it, and where."""

    shared: SharedStream
    start_at: Timestamp
    point: StartingPoint


def _scope_of(request: StreamRequest) -> spans.Attributes:
    attributes = {"db.system.name": "mongodb", "db.namespace": request.database}
    if request.collection is not None:
        attributes["db.collection.name"] = request.collection
    return attributes


class StreamPool:
    """All shared streams of a process; identical streams share remotes.

    Must be created in a running loop; ``await close()``, which closes ``open_streams`` too, once
    all readers are closed.
    """

    def __init__(self, cluster: Cluster, open_streams: OpenStreams, limits: StreamSettings) -> None:
        self._cluster = cluster
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._open_streams = open_streams
        self._placements: dict[LogReader, Placement] = {}
        self._failed = FailedStreams()
        self._filters = FilterPlanner(limits, self._failed, cluster)
        self._scopes = ScopePlanner(limits, self._failed)
        self.moving = 0
        """Readers that are moving to another stream."""
        self.moves_to_shared = 0
        """Readers that have moved from their own stream to one that serves others as well."""
        self.moves_to_own = 0
        """Readers that have moved back to their own stream."""

    async def open(
        self, request: StreamRequest, payer: Payer = NOBODY
    ) -> tuple[SharedStream, LogReader]:
        """Return a shared stream, entered, and a log reader on it from the start of ``request``.

        Remotes that are opened for them are charged to ``payer``. Raises CommandError.
        """
        with spans.recorded("open change stream", _scope_of(request)) as span:
            shared, log_reader = await self._open(request, payer)
            span.set_attribute("mergerouter.readers", shared.readers)
            return shared, log_reader

    async def _open(self, request: StreamRequest, payer: Payer) -> tuple[SharedStream, LogReader]:
        placement = self._placed(request)
        placement.payer = payer
        self._filters.join(placement)
        self._scopes.join(placement)
        entered: SharedStream | None = None
        try:
            start_at = request.start_time
            source = self._source(placement, start_at)
            # The shards check the client's own stream: only they know which names are views'.
            first = placement.own if source.namespace is not None else source
            tried = self._loop.time()
            try:
                begun = await self._begin(placement, first, start_at, payer)
            except CommandError as error:
                if first is placement.own:
                    raise
                self._refused(placement, first, error, tried)
                first = source = placement.own
                begun = await self._begin(placement, first, start_at, payer)
            entered = begun.shared
            if source is not first:
                at, after = begun.start_at, begun.point.after
                wider = await self._enter(placement, source, AtTime(at), at, payer, after)
                if wider is None:
                    source = placement.own
                else:
                    entered.leave(lingering=False)
                    entered = wider
            log_reader = LogReader(source.part_of(entered)(begun.point.after), begun.point)
            placement.source = source
            placement.entered = self._loop.time()
            self._placements[log_reader] = placement
            return entered, log_reader
        except BaseException:
            if entered is not None:
                entered.leave()
            self._filters.leave(placement)
            self._scopes.leave(placement)
            raise

    async def _begin(
        self, placement: Placement, source: Source, start_at: Timestamp | None, payer: Payer
    ) -> _Beginning:
        """Return the stream of ``source``, entered, and the client's starting point on it."""
        request = placement.own.request
        while True:
            shared, start_at = await self._open_streams.enter(
                source.starting(request), start_at, payer
            )
            point = starting_point(request, start_at, self._cluster.token_version)
            if shared.covers(point.after):
                return _Beginning(shared, start_at, point)
            # Other readers have advanced past the starting point during the opening.
            shared.leave()

    async def _enter(
        self,
        placement: Placement,
        source: Source,
        start: Start,
        start_at: Timestamp,
        payer: Payer,
        after: bytes,
        spans: Set[ShardSpan] = frozenset(),
    ) -> SharedStream | None:
        """Return the stream of ``source``, entered, that covers the events beyond ``after``.

        ``start_at`` is the cluster time of ``start``. Return None for another stream than the
        client's own that cannot be opened. Raises CommandError for the client's own.
        """
        request = replace(source.request, start=start)
        while True:
            tried = self._loop.time()
            entered: SharedStream | None = None
            try:
                entered, _ = await self._open_streams.enter(request, start_at, payer, after, spans)
                if entered.covers(after, spans):
                    return entered
                entered.leave()
            except CommandError as error:
                if source is placement.own:
                    raise
                self._refused(placement, source, error, tried)
                return None
            except BaseException:
                if entered is not None:
                    entered.leave()
                raise

    def _refused(
        self, placement: Placement, source: Source, error: CommandError, begun: float
    ) -> None:
        """Record that a stream that serves others as well, tried at ``begun``, does not serve.

        No client tries it again for a while. Where the error concerns this client alone (it has as
        many streams as it may, or its filter needs too much of an event), this client never does.
        """
        if error.code != ErrorCode.TemporarilyUnavailable:
            self._fails(source, error, begun)
        elif source.namespace is not None:
            self._scopes.leave(placement)
            placement.wider = ()
            placement.scope_reason = f"the wider stream was refused: {error}"
        else:
            self._filters.leave(placement)
            placement.whole = None
            placement.reason = f"the shared stream was refused: {error}"

    async def follow(self, log_reader: LogReader, payer: Payer) -> SharedStream:
        """Return a shared stream, entered, to which the log reader ``log_reader`` is attached.

        For a log reader of ``payer`` whose shared stream no longer covers the events that it
        needs, or that should read another source from now on. Raises CommandError.
        """
        placement = self._placements[log_reader]
        own = placement.own
        start_at = cluster_time_of(log_reader.needs)
        source = self._source(placement, start_at, log_reader)
        start: Start = AtTime(start_at)
        if own.request.starts_after_invalidate:
            # Wherever the reader is by now, its shards must leave out the same invalidates.
            start, start_at = own.request.start, own.request.start_time or start_at
        shared: SharedStream | None = None
        try:
            while shared is None:
                needs, spans = log_reader.needs, log_reader.needs_spans
                shared = await self._enter(placement, source, start, start_at, payer, needs, spans)
                if shared is None:
                    source = own
            log_reader.attach(source.part_of(shared)(needs))
            self._moved(placement, source)
            return shared
        except BaseException as error:
            if shared is not None:
                shared.leave()
            if isinstance(error, CommandError) and error.code == ErrorCode.TemporarilyUnavailable:
                # The cursor ends; the driver resumes by an aggregate, which it may retry.
                raise CommandError(error.code, error.message, labels=(RESUMABLE_LABEL,)) from error
            raise

    def join_main(self, shared: SharedStream, log_reader: LogReader) -> SharedStream | None:
        """Move a reader of ``shared`` to the main stream of its group if that has the next events.

        The group is that of the source that the reader should read from now on. Return the main
        stream, entered, and leave ``shared``; or None if the reader stays.
        """
        placement = self._placements[log_reader]
        source = self._preferred(placement, log_reader)
        changes = source.key != placement.source.key
        group = (
            self._open_streams.group(source.key) if changes else self._open_streams.group_of(shared)
        )
        main = None if group is None else group.main
        if main is None or main is shared or not main.has_opened:
            return None
        gate = log_reader.stream.gate
        if gate is None or main.is_late(cluster_time_of(gate)):
            return None
        if not main.readers and main.is_before(log_reader.reached):
            return None  # it would be read for this client alone, which has its own remotes
        if source.namespace is not None and not placement.may_narrow(
            log_reader, log_reader.reached
        ):
            return None
        left = log_reader.stream
        if not log_reader.join(main.runner.stream, source.part_of(main)):
            return None
        self._moved(placement, source)
        main.enter()
        self.leave(shared, left)
        return main

    def leave(self, shared: SharedStream, stream: ReadableStream) -> None:
        """Remove a reader of ``stream``, which is ``shared``'s stream or a view of it."""
        try:
            shared.runner.filtered.close(stream)
        finally:
            shared.leave()

    def is_misplaced(self, log_reader: LogReader) -> bool:
        """Return whether a reader should read another source, which has to be opened."""
        placement = self._placements[log_reader]
        source = self._preferred(placement, log_reader)
        if source.key == placement.source.key:
            return False
        if source is placement.own:
            return self._open_streams.admits(source.key, placement.payer, self.moving)
        if not self._is_recent(cluster_time_of(log_reader.needs)):
            return False
        if source.namespace is not None and not placement.may_narrow(log_reader, log_reader.needs):
            return False
        group = self._open_streams.group(source.key)
        return group is None or group.main is None or not group.main.healthy

    def outlives(self, log_reader: LogReader, error: CommandError) -> bool:
        """Return whether a reader goes on although its stream has failed with ``error``.

        An unfiltered or a wider stream fails by an event that is too large, or lacks an image that
        is required; the client's own stream may not have that event. So the client reads its own
        for a while. It also goes on there when the wider stream has ended.
        """
        stream = log_reader.stream
        placement = self._placements[log_reader]
        if not isinstance(stream, View):
            return False
        if stream.overtaken:
            placement.beyond = stream.gate or b""
            return True
        if error.code == ErrorCode.CappedPositionLost:
            return True  # other readers have overtaken its filter, and the stream goes on
        if RESUMABLE_LABEL in error.labels or error.code == ErrorCode.ChangeStreamHistoryLost:
            return False
        self._refused(placement, placement.source, error, placement.entered)
        self._moved(placement, placement.own)
        return True

    def explain(self, request: StreamRequest) -> dict[str, Any]:
        """Return which stream would serve ``request`` now, where its filter runs, and why.

        Empty for a stream without stages where ``shareScopes`` is never.
        """
        placement = self._placed(request)
        now = self._loop.time()
        explained: dict[str, Any] = {}
        if request.stages:
            explained["filter"] = self._filters.explain(placement, now)
        scope = self._scopes.explain(placement, now)
        if scope is not None:
            explained["scope"] = scope
            if request.stages and scope["readFrom"] != request.namespace:
                explained["filter"] |= {"evaluatedBy": "router", "reason": "a wider stream is read"}
        return explained

    def _fails(self, source: Source, error: CommandError, entered: float) -> None:
        """Keep clients away from a shared stream for a while."""
        if self._failed.add(source.key, error, entered, self._loop.time()):
            namespace = source.request.namespace
            cause = error.__cause__
            log.warning(
                "a shared stream is avoided", namespace=namespace, error=str(error), exc_info=cause
            )

    def _placed(self, request: StreamRequest) -> Placement:
        own = Source(request)
        placement = Placement(own, own)
        self._filters.place(placement)
        self._scopes.place(placement)
        return placement

    def _moved(self, placement: Placement, source: Source) -> None:
        """Record which stream a client reads from now on."""
        was_own, is_own = placement.source is placement.own, source is placement.own
        self.moves_to_shared += was_own and not is_own
        self.moves_to_own += is_own and not was_own
        placement.source = source
        placement.entered = self._loop.time()

    def _preferred(self, placement: Placement, log_reader: LogReader | None = None) -> Source:
        """Return the source that a client should read, if it could be found anywhere."""
        traffic = None
        if log_reader is not None and isinstance(log_reader.stream, View):
            traffic = log_reader.stream.scan.traffic
        now = self._loop.time()
        wider = self._scopes.source(placement, now, traffic)
        if wider is not None:
            return wider
        if placement.whole is not None and self._filters.shares(placement, now, traffic):
            return placement.whole
        return placement.own

    def _source(
        self, placement: Placement, start_at: Timestamp | None, log_reader: LogReader | None = None
    ) -> Source:
        """Return the source that a client should read from ``start_at`` on.

        One that starts long ago reads its own until it has caught up. So does one that leaves a
        wider stream, or whose needs are not at the beginning of a cluster time.
        """
        source = self._preferred(placement, log_reader)
        if source.namespace is not None and log_reader is not None:
            stream = log_reader.stream
            left = isinstance(stream, View) and not stream.incarnation.is_whole
            if left or not placement.may_narrow(log_reader, log_reader.needs):
                return placement.own
        always = placement.mode if source.namespace is None else placement.scope_mode
        recent = start_at is None or self._is_recent(start_at)
        return source if recent or always == ALWAYS else placement.own

    def _is_recent(self, time: Timestamp) -> bool:
        now = self._cluster.clock.time or time
        return now.time - time.time <= self._limits.share_behind

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task for which ``close`` waits."""
        return self._open_streams.spawn(work, name)

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        share = self._limits.replies_bytes // max(1, len(self._placements))
        return min(self._limits.reply_bytes, max(_LEAST_REPLY, share))

    def closed(self, log_reader: LogReader) -> None:
        """Record that a reader has been closed."""
        placement = self._placements.pop(log_reader)
        self._filters.leave(placement)
        self._scopes.leave(placement)

    async def close(self) -> None:
        """Close all remotes, within bounded time."""
        await self._open_streams.close()
