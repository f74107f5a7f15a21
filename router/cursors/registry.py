"""The registry of the process's merged cursors: opening, checkout, killing, timeouts."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final

import structlog
from bson.timestamp import Timestamp

from router.cursors.cursor import MergedCursor, Owner
from router.limits.cursor_admission import Quota
from router.lookup.completing_reader import CompletingReader
from router.lookup.pushdown import LookupPlan
from router.lookup.upstream_reads import Lend, UpstreamReads
from router.privileges import User
from router.request.stream_request import StreamRequest
from router.stream.client_reader import ClientReader
from router.stream.open_streams import OpenStreams
from router.stream.readers.log_reader import Batch
from router.stream.running_stream import RunningStream
from router.tasks import shutting_down
from shard_client.bson.resume_token import cluster_seconds_of, cluster_time_of
from shard_client.errors import CommandError, ErrorCode

log = structlog.get_logger()

_QUIESCES: Final = "The server is in quiesce mode and will shut down"

_MOST_DEPARTED: Final = 1000
_REMEMBERED_FOR: Final = 24 * 60 * 60.0


class DepartedClients:
    """The cluster times from which clients that have left may resume.

    A client is known by its address and the namespace it watched; its entry goes when it opens a
    cursor again, after a day, or when more than a thousand others have left since.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[str | None, str], tuple[float, Timestamp]] = OrderedDict()

    def record_left(self, client: str | None, namespace: str, needs: bytes, now: float) -> None:
        """Record that a cursor has been closed; ``now`` is the loop's time in seconds.

        ``needs`` is the sort key beyond which the client needs all events.
        """
        with suppress(ValueError):  # a damaged token has no place in the oplog
            key, resume_time = (client, namespace), cluster_time_of(needs)
            earlier = self._left.pop(key, None)
            if earlier is not None and now - earlier[0] < _REMEMBERED_FOR:
                resume_time = min(resume_time, earlier[1])
            self._left[key] = (now, resume_time)
            if len(self._left) > _MOST_DEPARTED:
                self._left.popitem(last=False)

    def record_back(self, client: str | None, namespace: str) -> None:
        """Record that a client has opened a cursor."""
        self._left.pop((client, namespace), None)

    def earliest(self, now: float) -> Timestamp | None:
        """Return the earliest of these times at the loop's time ``now``; None if there is none."""
        times = (time for at, time in self._left.values() if now - at < _REMEMBERED_FOR)
        return min(times, default=None)


class CursorRegistry:
    """The merged cursors of a process. ``await close()`` ends them all.

    Must be created in a running loop. Remotes without clients are closed in the background;
    ``close`` waits for that. ``streams`` are the open streams, which it closes too; ``new_id``
    returns a new cursor id, random ones by default; ``mongos`` lends connections to the upstream
    for document lookups, if there is one; ``sent_time`` returns the ``$clusterTime`` that lookups
    carry, by default the clock's newest.
    """

    def __init__(
        self,
        streams: OpenStreams,
        *,
        new_id: Callable[[], int] | None = None,
        mongos: Lend | None = None,
        sent_time: Callable[[], bytes | None] | None = None,
    ) -> None:
        self._make_id = new_id or partial(secrets.randbits, 63)
        self.streams = streams
        self._settings = streams.resources.settings
        self._reads: UpstreamReads | None = None
        if mongos is not None:
            clock = streams.cluster.clock
            self._reads = UpstreamReads(mongos, clock, self._settings, sent_time=sent_time)
        self._loop = asyncio.get_running_loop()
        self._cursors: dict[int, MergedCursor] = {}
        self._departed = DepartedClients()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(
        self,
        request: StreamRequest,
        owner: Owner,
        *,
        user: User | None = None,
        api: str = "{}",
        request_bytes: int = 0,
    ) -> tuple[MergedCursor, Batch]:
        """Open a merged cursor for ``request``; its first batch does not wait for events.

        ``user`` and ``api`` are the cursor's; ``request_bytes`` is the size of the request. Raises
        CommandError: the shards' opening errors as mongos returns them, 133 (labelled resumable) if
        shards or the config server stay unreachable, 365 if too many cursors or streams are open.
        """
        if self._closed:
            raise shutting_down(_QUIESCES)
        quota = Quota(owner.client, owner.user)
        admitted = self.streams.admission.admit_cursor(quota, request_bytes)
        with ExitStack() as closing:
            closing.callback(admitted.close)
            reader = await self._open_reader(request, quota)
            cursor = MergedCursor(
                self._new_id(), request.namespace, owner, reader, admitted, user=user, api=api
            )  # fmt: skip
            closing.callback(cursor.close)
            first = cursor.first_batch()
            if self._closed:
                raise shutting_down(_QUIESCES)
            closing.pop_all()
            self._departed.record_back(owner.client, request.namespace)
            cursor.last_used = self._loop.time()
            self._cursors[cursor.cursor_id] = cursor
            self._schedule_check()
        return cursor, first

    @contextmanager
    def checkout(self, cursor_id: int, owner: Owner) -> Iterator[MergedCursor]:
        """Check the cursor out for one getMore, until the end of the ``with`` block.

        A cursor that has ended or failed, or whose getMore is interrupted or raises an unexpected
        exception, which may have lost events, is removed afterwards. Raises CommandError: 43
        CursorNotFound, 143 CursorInUse, 13 Unauthorized if its user may no longer read the
        namespace, the error for a different session or user, or, labelled resumable, an unexpected
        exception.
        """
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            raise CommandError(ErrorCode.CursorNotFound, f"Cursor not found (id: {cursor_id}).")
        in_use, interrupted = False, True
        try:
            cursor.check(owner)
            if (refusal := cursor.refusal) is not None:
                self._remove(cursor_id)
                raise refusal
            cursor.busy = in_use = True
            yield cursor
            interrupted = False
        except CommandError:
            interrupted = False
            raise
        except Exception as error:
            log.exception("getMore failed", cursor=cursor_id)
            raise CommandError.unexpected(error) from error
        finally:
            if in_use:
                self._check_in(cursor, interrupted=interrupted)

    def _check_in(self, cursor: MergedCursor, *, interrupted: bool) -> None:
        """Start the idle time of a cursor whose getMore has ended, or remove the cursor."""
        cursor.busy = False
        cursor.last_used = self._loop.time()
        try:
            if interrupted or cursor.finished:
                self._remove(cursor.cursor_id)
        except Exception:  # the reply is right all the same
            log.exception("closing a cursor failed", cursor=cursor.cursor_id)

    def __contains__(self, cursor_id: int) -> bool:
        """Return whether the cursor is in this registry."""
        return cursor_id in self._cursors

    def __len__(self) -> int:
        """Return the number of open merged cursors."""
        return len(self._cursors)

    def describe_streams(self) -> Iterator[dict[str, Any]]:
        """Yield descriptions of the streams that are open when it begins, for monitoring."""
        readers: dict[RunningStream, list[int]] = {}
        for cursor_id, cursor in self._cursors.items():
            shared = cursor.running_stream
            if shared is not None:
                readers.setdefault(shared, []).append(cursor_id)
        for stream, ids in readers.items():
            yield stream.describe(ids)

    def describe_cursors(self, most: int, wall: float) -> list[dict[str, Any]]:
        """Return descriptions of up to ``most`` open cursors, those farthest behind first.

        ``stream`` is the number of the stream that it reads, None while it moves.
        ``behindSeconds`` is the time for which the client leaves events unread. ``wall`` is the
        time since 1970.
        """
        farthest = nlargest(most, self._seconds_behind(wall), key=itemgetter(0))
        now = self._loop.time()
        return [
            {
                "stream": None if cursor.running_stream is None else cursor.running_stream.number,
                "namespace": cursor.namespace,
                "client": cursor.owner.connection,
                "behindSeconds": behind,
                "idleSeconds": 0.0 if cursor.busy else now - cursor.last_used,
                "busy": cursor.busy,
            }
            for behind, cursor in farthest
        ]

    def _seconds_behind(self, wall: float) -> Iterator[tuple[float, MergedCursor]]:
        """Yield for how many seconds each client leaves events unread, and its cursor."""
        ends: dict[RunningStream, float] = {}
        for cursor in self._cursors.values():
            stream = cursor.running_stream
            if stream is None:
                yield 0.0, cursor
                continue
            end = ends.get(stream)
            if end is None:
                end = ends[stream] = stream.readable_until(wall)
            yield max(0.0, end - cluster_seconds_of(cursor.needs)), cursor

    @property
    def places(self) -> dict[str, Timestamp | None]:
        """The earliest cluster times from which clients may resume; None where there is none.

        "cursor" is that of the open cursors, "departed" that of cursors that clients have left
        within a day without opening them again.
        """
        earliest = min((cursor.needs for cursor in self._cursors.values()), default=None)
        return {
            "cursor": None if earliest is None else cluster_time_of(earliest),
            "departed": self._departed.earliest(self._loop.time()),
        }

    def has_another_users(self, cursor_ids: Iterable[int], owner: Owner) -> bool:
        """Return whether another user has opened one of these cursors."""
        cursors = (self._cursors.get(cursor_id) for cursor_id in cursor_ids)
        return any(cursor is not None and cursor.owner.user != owner.user for cursor in cursors)

    def revoke(self, user: User) -> None:
        """End the cursors that ``user`` may no longer read; their next getMore raises the error."""
        for cursor in list(self._cursors.values()):
            if cursor.user is user and (refusal := cursor.refusal) is not None:
                cursor.close(refusal)

    def kill(self, cursor_ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """Kill cursors of any user; return those that were killed, and those that were not found.

        The shards' cursors are killed in the background. A getMore in flight fails with 237
        CursorKilled.
        """
        killed: list[int] = []
        not_found: list[int] = []
        for cursor_id in cursor_ids:
            (killed if cursor_id in self._cursors else not_found).append(cursor_id)
            self._remove(cursor_id)
        return killed, not_found

    def end_sessions(self, lsids: Iterable[bytes], user: str | None, *, busy: bool) -> None:
        """Kill the cursors of these sessions of the user.

        Those with a getMore in flight are left, unless ``busy`` is set: mongos lets that finish,
        and a session that is used again goes on.
        """
        for cursor in self._of_sessions(lsids, user):
            if busy or not cursor.busy:
                self._remove(cursor.cursor_id)

    def refresh_sessions(self, lsids: Iterable[bytes], user: str | None) -> None:
        """Restart the idle time of the cursors of these sessions of the user."""
        for cursor in self._of_sessions(lsids, user):
            cursor.last_used = self._loop.time()

    def _of_sessions(self, lsids: Iterable[bytes], user: str | None) -> list[MergedCursor]:
        sessions, cursors = set(lsids), self._cursors.values()
        return [
            cursor
            for cursor in cursors
            if cursor.owner.user == user and cursor.owner.lsid in sessions
        ]

    async def close(self) -> None:
        """Kill all cursors and wait, for a bounded time, until their remotes are closed.

        A getMore in flight fails with 91 ShutdownInProgress, labelled resumable.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for cursor_id in list(self._cursors):
            self._remove(cursor_id, shutting_down(_QUIESCES))
        await self.streams.close()

    async def _open_reader(
        self, request: StreamRequest, quota: Quota
    ) -> ClientReader | CompletingReader:
        """Return a reader of ``request``. Raises CommandError; then nothing is left open."""
        plan = LookupPlan.of(request)
        if plan is None:
            return await ClientReader.open(self.streams, request, quota)
        if self._reads is None:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "fullDocument: 'updateLookup' requires an upstream mongos to look documents up: "
                "start the router with --upstream mongodb://host:port, and with security.user "
                "where clients log in, or ask for 'whenAvailable' or 'required' on collections "
                "with changeStreamPreAndPostImages",
            )
        self.streams.admission.admit_lookup(quota, self.streams.cluster.targets)
        return await CompletingReader.open(self.streams, quota, plan, self._reads)

    def _new_id(self) -> int:
        while True:
            cursor_id = self._make_id()
            if cursor_id and cursor_id not in self._cursors:
                return cursor_id

    def _remove(self, cursor_id: int, reason: CommandError | None = None) -> None:
        cursor = self._cursors.pop(cursor_id, None)
        if cursor is not None:
            try:
                cursor.close(reason)
                client, needs = cursor.owner.client, cursor.needs
                self._departed.record_left(client, cursor.namespace, needs, self._loop.time())
            except Exception:  # the other cursors are closed all the same
                log.exception("closing a cursor failed", cursor=cursor_id)

    def _schedule_check(self) -> None:
        if self._timer is None and self._cursors and not self._closed:
            shortest = min(self._settings.cursor_timeout, self._settings.session_timeout)
            self._timer = self._loop.call_later(max(0.1, min(5.0, shortest / 4)), self._end_idle)

    def _end_idle(self) -> None:
        self._timer = None
        now = self._loop.time()
        for cursor_id, cursor in list(self._cursors.items()):
            in_session = cursor.owner.lsid is not None
            limit = self._settings.session_timeout if in_session else self._settings.cursor_timeout
            if not cursor.busy and now - cursor.last_used > limit:
                log.info("idle cursor timed out", cursor=cursor_id)
                self._remove(cursor_id)
        self._schedule_check()
