"""The registry of the process's merged cursors: opening, checkout, killing, timeouts."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from heapq import nsmallest
from operator import itemgetter
from typing import Any, NamedTuple

import structlog
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.log_reader import Batch
from router.change_stream.request import StreamRequest
from router.change_stream.resume_token import cluster_time_of
from router.cursors.lookup_cursor import LookupCursor
from router.cursors.merged_cursor import MergedCursor
from router.cursors.owner import Owner, check_user
from router.cursors.places import CursorDescription, DepartedPlaces
from router.cursors.registered_cursor import RegisteredCursor
from router.lookup.completion import Completion
from router.lookup.connections import Connect
from router.lookup.plan import LookupPlan
from router.lookup.settings import LookupSettings
from router.lookup.upstream_reads import UpstreamReads
from router.memory import Memory
from router.stream_settings import StreamSettings
from router.streams.admission import Admission, Payer
from router.streams.description import StreamDescription
from router.streams.explanation import explain_stream
from router.streams.member_load import MemberLoads
from router.streams.nudge_sender import NudgeSender
from router.streams.open_streams import OpenStreams
from router.streams.pool import StreamPool
from router.streams.runner import StreamRunner
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.wire.connection import Address
from shard_client.wire.connection_pool import PoolCounts

log = structlog.get_logger()


class KillResult(NamedTuple):
    """The four lists of a killCursors reply (docs/protocol.md#cursor-replies)."""

    killed: list[int]
    not_found: list[int]
    alive: list[int]
    unknown: list[int]


class CursorRegistry:
    """The merged cursors of a process. ``await close()`` ends them all.

    Must be created in a running loop. Remotes without clients are closed in the background;
    ``close`` waits for that.

    Args:
        cluster: the cluster whose shards are read.
        limits: the limits of streams.
        new_id: returns a new cursor id; None for random ids.
        mongos: connects to the upstream for document lookups; None without an upstream.
        sent_time: returns the ``$clusterTime`` that lookups carry; by default the clock's newest.
    """

    def __init__(
        self,
        cluster: Cluster,
        limits: StreamSettings | None = None,
        *,
        new_id: Callable[[], int] | None = None,
        mongos: Connect | None = None,
        sent_time: Callable[[], bytes | None] | None = None,
    ) -> None:
        self._make_id = new_id or _random_id
        self._cluster = cluster
        self._limits = limits or StreamSettings()
        self.loads = MemberLoads()
        """Counts of the commands sent to the cluster's members."""
        self._nudge_sender = NudgeSender(cluster, self._limits, self.loads)
        self.memory = Memory(self._limits.total_buffer_bytes, self._limits.user_buffer)
        """The memory that the events of all streams take."""
        self.admission = Admission(self._limits, self.memory)
        open_streams = OpenStreams(
            cluster, self._nudge_sender, self._limits, self.admission, self.memory
        )
        self._streams = StreamPool(cluster, open_streams, self._limits)
        self._reads: UpstreamReads | None = None
        if mongos is not None:
            settings = LookupSettings(
                timeout=self._limits.failure_timeout,
                backoff_first=self._limits.backoff_first,
                backoff_max=self._limits.backoff_max,
            )
            self._reads = UpstreamReads(mongos, cluster.clock, settings, sent_time=sent_time)
        self._loop = asyncio.get_running_loop()
        self._entries: dict[int, RegisteredCursor] = {}
        self._departed = DepartedPlaces()
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(self, request: StreamRequest, owner: Owner) -> tuple[MergedCursor, Batch]:
        """Open a merged cursor for ``request``; its first batch does not wait for events.

        Raises CommandError: the shards' opening errors as mongos returns them, 133 (labelled
        resumable) if shards or the config server stay unreachable, 365 if too many cursors or
        streams are open.
        """
        if self._closed:
            raise _shutting_down()
        payer = Payer(owner.client, owner.user)
        ticket = self.admission.cursor(payer)
        cursor: MergedCursor | None = None
        try:
            cursor = await self._new_cursor(request, payer)
            first = cursor.first_batch()
            if self._closed:
                raise _shutting_down()
        except BaseException:
            if cursor is not None:
                cursor.close()
            ticket.end()
            raise
        if first.closed:
            cursor.close()
            ticket.end()
        else:
            self._departed.returned(owner.client, request.namespace)
            self._entries[cursor.cursor_id] = RegisteredCursor(
                cursor, owner, ticket, self._used, self._loop.time()
            )
            self._schedule_reaping()
        return cursor, first

    async def explain(self, request: StreamRequest, verbosity: Any) -> dict[str, Any]:
        """Return the plan of ``request`` without opening a cursor. Raises CommandError."""
        plan = await explain_stream(request, verbosity, self._cluster, self._limits)
        lookup = LookupPlan.of(request)
        read = request if lookup is None else lookup.remote
        choices = self._streams.explain(read)
        if choices:
            plan["mergerouter"] = choices
        return plan

    def checkout(self, cursor_id: int, owner: Owner) -> AbstractContextManager[MergedCursor]:
        """Check the cursor out for one getMore, until the end of the ``with`` block.

        Raises CommandError: 43 CursorNotFound, 143 CursorInUse, or the error for a different
        session or user. A cursor that has ended or failed, or whose getMore is interrupted, is
        removed afterwards.
        """
        entry = self._entries.get(cursor_id)
        if entry is None:
            raise CommandError(ErrorCode.CursorNotFound, f"Cursor not found (id: {cursor_id}).")
        entry.check(owner)
        return entry

    def __contains__(self, cursor_id: int) -> bool:
        """Return whether the cursor is in this registry."""
        return cursor_id in self._entries

    def __len__(self) -> int:
        """Return the number of open merged cursors."""
        return len(self._entries)

    @property
    def moves(self) -> tuple[int, int]:
        """The number of moves of cursors to streams that serve others as well, and back."""
        return self._streams.moves_to_shared, self._streams.moves_to_own

    def describe(self) -> list[StreamDescription]:
        """Return descriptions of the open streams, for monitoring."""
        return [runner.describe(tuple(ids)) for runner, ids in self._readers().items()]

    async def describe_gradually(self) -> AsyncIterator[StreamDescription]:
        """Yield what ``describe`` returns; give way to other tasks between two streams."""
        for runner, ids in self._readers().items():
            yield runner.describe(tuple(ids))
            await asyncio.sleep(0)

    def _readers(self) -> Mapping[StreamRunner, list[int]]:
        readers: dict[StreamRunner, list[int]] = {}
        for cursor_id, entry in self._entries.items():
            shared = entry.cursor.shared
            if shared is not None:
                readers.setdefault(shared.runner, []).append(cursor_id)
        return readers

    def describe_cursors(self, most: int) -> list[CursorDescription]:
        """Return descriptions of up to ``most`` open cursors, those farthest behind first."""
        places = ((entry.cursor.place, entry) for entry in self._entries.values())
        farthest = nsmallest(most, places, key=itemgetter(0))
        now = self._loop.time()
        return [
            CursorDescription(
                cursor_id=entry.cursor.cursor_id,
                namespace=entry.cursor.namespace,
                client=entry.owner.client,
                place=cluster_time_of(place),
                idle=0.0 if entry.busy else now - entry.last_used,
                busy=entry.busy,
            )
            for place, entry in farthest
        ]

    @property
    def earliest_place(self) -> Timestamp | None:
        """The earliest cluster time from which an open cursor may resume; None without cursors."""
        places = (entry.cursor.place for entry in self._entries.values())
        earliest = min(places, default=None)
        return None if earliest is None else cluster_time_of(earliest)

    @property
    def earliest_departed_place(self) -> Timestamp | None:
        """The same for cursors that clients have left within a day without opening them again."""
        return self._departed.earliest(self._loop.time())

    @property
    def nudges(self) -> dict[str, int]:
        """Nudges of idle members so far, by target."""
        return {target: load.nudges for target, load in self.loads.items() if load.nudges}

    @property
    def connections(self) -> Mapping[Address, PoolCounts]:
        """Connections to the cluster's members, by member."""
        return self._cluster.pool.counts

    def any_of_others(self, cursor_ids: Iterable[int], owner: Owner) -> bool:
        """Return whether another user has opened one of these cursors."""
        entries = (self._entries.get(cursor_id) for cursor_id in cursor_ids)
        return any(entry is not None and entry.owner.user != owner.user for entry in entries)

    def revoke(self, refusal: Callable[[MergedCursor], CommandError | None]) -> None:
        """End the cursors for which ``refusal`` returns an error; their next getMore raises it."""
        for entry in list(self._entries.values()):
            error = refusal(entry.cursor)
            if error is not None:
                entry.cursor.kill(error)
                entry.cursor.close()

    def kill(self, cursor_ids: Iterable[int], owner: Owner, *, anybody: bool = False) -> KillResult:
        """Kill cursors by id; the shards' cursors are killed in the background.

        A getMore in flight fails with 237 CursorKilled. Raises CommandError (13 Unauthorized) for
        another user's cursor, unless ``anybody`` is set.
        """
        result = KillResult([], [], [], [])
        for cursor_id in cursor_ids:
            entry = self._entries.get(cursor_id)
            if entry is None:
                result.not_found.append(cursor_id)
                continue
            if not anybody:
                check_user(cursor_id, entry.owner, owner)
            self._remove(cursor_id)
            result.killed.append(cursor_id)
        return result

    def end_sessions(self, lsids: Iterable[bytes], user: str | None = None) -> None:
        """Kill the cursors of these sessions of the user."""
        ended = set(lsids)
        for cursor_id, entry in list(self._entries.items()):
            if entry.owner.lsid in ended and entry.owner.user == user:
                self._remove(cursor_id)

    def refresh_sessions(self, lsids: Iterable[bytes], user: str | None = None) -> None:
        """Restart the idle time of the cursors of these sessions of the user."""
        refreshed = set(lsids)
        now = self._loop.time()
        for entry in self._entries.values():
            if entry.owner.lsid in refreshed and entry.owner.user == user:
                entry.last_used = now

    async def close(self) -> None:
        """Kill all cursors and wait, for a bounded time, until their remotes are closed.

        A getMore in flight fails with 91 ShutdownInProgress, labelled resumable.
        """
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        for cursor_id in list(self._entries):
            self._remove(cursor_id, _shutting_down())
        await self._nudge_sender.close()
        await self._streams.close()

    async def _new_cursor(self, request: StreamRequest, payer: Payer) -> MergedCursor:
        plan = LookupPlan.of(request)
        if plan is None:
            reading = await self._streams.open(request, payer)
            return MergedCursor(self._new_id(), request, self._streams, *reading, payer)
        if self._reads is None:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "fullDocument: 'updateLookup' takes an upstream mongos to look documents up: start "
                "the router with --upstream mongodb://host:port, and with security.user where "
                "clients log in, or ask for 'whenAvailable' or 'required' on collections with "
                "changeStreamPreAndPostImages",
            )
        self.admission.lookup(payer, self._cluster.targets)
        older = self._cluster.token_version < 2
        memory = self.memory.of(payer.user)
        completion = Completion(plan, self._reads, memory, same_collection=older)
        try:
            await completion.check()
            reading = await self._streams.open(plan.remote, payer)
        except BaseException:
            completion.close()
            raise
        enough = self._limits.reply_target_bytes
        return LookupCursor(
            self._new_id(), plan.remote, self._streams, *reading, payer,
            completion=completion, enough=enough, memory=memory,
        )  # fmt: skip

    def _used(self, entry: RegisteredCursor, interrupted: bool) -> None:
        """Start the idle time of a cursor whose getMore has ended, or remove the cursor."""
        entry.last_used = self._loop.time()
        if interrupted or entry.cursor.finished:
            self._remove(entry.cursor.cursor_id)

    def _new_id(self) -> int:
        while True:
            cursor_id = self._make_id()
            if cursor_id and cursor_id not in self._entries:
                return cursor_id

    def _remove(self, cursor_id: int, reason: CommandError | None = None) -> None:
        entry = self._entries.pop(cursor_id, None)
        if entry is not None:
            self._remember_place(entry)
            try:
                entry.cursor.kill(reason)
                entry.cursor.close()
            except Exception:  # the other cursors are closed all the same
                log.exception("closing a cursor failed", cursor=cursor_id)
            finally:
                entry.ticket.end()

    def _remember_place(self, entry: RegisteredCursor) -> None:
        try:
            place = cluster_time_of(entry.cursor.place)
        except ValueError:
            return  # a damaged token has no place in the oplog
        client, namespace = entry.owner.client, entry.cursor.namespace
        self._departed.left(client, namespace, place, self._loop.time())

    def _schedule_reaping(self) -> None:
        if self._reaper is None and self._entries and not self._closed:
            shortest = min(self._limits.cursor_timeout, self._limits.session_timeout)
            self._reaper = self._loop.call_later(max(0.1, min(5.0, shortest / 4)), self._reap)

    def _reap(self) -> None:
        self._reaper = None
        now = self._loop.time()
        for cursor_id, entry in list(self._entries.items()):
            in_session = entry.owner.lsid is not None
            limit = self._limits.session_timeout if in_session else self._limits.cursor_timeout
            if not entry.busy and now - entry.last_used > limit:
                log.info("idle cursor timed out", cursor=cursor_id)
                self._remove(cursor_id)
        self._schedule_reaping()


def _random_id() -> int:
    return secrets.randbits(63)


def _shutting_down() -> CommandError:
    return CommandError(
        ErrorCode.ShutdownInProgress, "The server is in quiesce mode and will shut down"
    ).with_change_stream_label()
