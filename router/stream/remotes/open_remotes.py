"""The remotes of one stream: opens, reads, probes and closes their cursors."""

from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

import structlog
from bson.int64 import Int64

from router.catalog.cluster import Cluster, MemberDialer
from router.counters.loads import StreamLoads
from router.limits.memory import Memory
from router.request.shard_commands import progress_command, shard_command, topology_command
from router.request.stream_request import StreamRequest
from router.stream.merge.merged_stream import MergedStream
from router.stream.merge.merger import MergeInput
from router.stream.remotes.noop_writer import NoOpWriter
from router.stream.remotes.remote import Remote
from router.stream_settings import StreamSettings
from shard_client import spans
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.remote_cursor.progress_cursor import Probing
from shard_client.remote_cursor.remote_cursor import RemoteCursor
from shard_client.replica_set.replica_set import PRIMARY, ReadPreference

log = structlog.get_logger()


class StreamResources(NamedTuple):
    """What the streams of a process share.

    ``loads`` counts the commands sent to each member, and what clients receive. ``memory`` counts
    remotes, and the bytes of events that are held: those of one user, where clients log in.
    """

    cluster: Cluster
    settings: StreamSettings
    loads: StreamLoads
    noop_writer: NoOpWriter
    memory: Memory


class OpenRemotes:
    """The open remotes of one stream, which it reads in the background.

    ``request`` is what the shards are asked for, and ``merged`` the merge of the remotes. ``start``
    runs work in a task of that name; ``arrived`` processes each batch of an open remote, ``failed``
    the failure that ends its cursor. Must be created in a running loop.
    """

    def __init__(
        self,
        request: StreamRequest,
        merged: MergedStream,
        resources: StreamResources,
        start: Callable[[str, Callable[[], Awaitable[None]], Context | None], object],
        arrived: Callable[[Remote, CursorBatch], None],
        failed: Callable[[Remote, CommandError], None],
    ) -> None:
        self._request = request
        self._merged = merged
        self._resources = resources
        self._start = start
        self._arrived = arrived
        self._failed = failed
        self.preference = ReadPreference.of(request.read_preference)
        """Which members are read."""
        self._by_number: dict[int, Remote] = {}
        self._changes = 0
        """The changes of the membership that have been made."""
        self._closed = False

    def __iter__(self) -> Iterator[Remote]:
        """All open remotes."""
        return iter(self._by_number.values())

    def __len__(self) -> int:
        """Return the number of open remotes."""
        return len(self._by_number)

    def get(self, number: int) -> Remote | None:
        """Return the remote with this number; None if it is not open."""
        return self._by_number.get(number)

    @property
    def slowest(self) -> Remote | None:
        """The remote with the smallest watermark, or one that has none yet."""
        number = self._merged.merger.slowest_remote
        return None if number is None else self.get(number)

    # Opening and closing.

    def follow_merge(self) -> None:
        """Open, reopen and close remotes, so that those of the merge are open.

        If a cursor cannot be created, this raises, and nothing is open that was not before.
        """
        changes, merged = self._merged.membership.changes, self._merged.merger.remotes
        if self._closed or changes == self._changes:
            return
        self._changes = changes
        for gone in [remote for remote in self if remote.number not in merged]:
            self._close(gone)
        for number, in_merge in merged.items():
            remote = self.get(number)
            if remote is None:
                cursor = self._new_cursor(in_merge)
                remote = Remote(in_merge, cursor, self._resources.settings)
                log.debug("open remote", target=remote.target, start_at=in_merge.start_at)
                self._by_number[number] = remote
                self._resources.memory.add(remotes=1)
            elif remote.opened_at != in_merge.opens_at:
                self._close_cursor(remote)
                remote.cursor, remote.opened_at = self._new_cursor(in_merge), in_merge.opens_at
            else:
                continue
            name = f"remote cursor {remote.target}"
            self._start(name, partial(self._read, remote, remote.cursor), spans.apart())

    def _new_cursor(self, remote: MergeInput) -> RemoteCursor:
        request, shared = self._request, self._resources
        topology, first = remote.topology, remote.opens_at

        def command(pbrt: bytes | None) -> tuple[str, dict[str, Any]]:
            start = first if pbrt is None else pbrt
            return topology_command(start) if topology else shard_command(request, start)

        preference, probing = PRIMARY, None
        if not topology:
            preference = self.preference
            probing = Probing(
                lambda pbrt: progress_command(*command(pbrt), pbrt), request.splits_large_events
            )
        return RemoteCursor(
            remote.target,
            dialer=MemberDialer(shared.cluster, remote.target, remote.host or None, preference),
            opening=command,
            clock=shared.cluster.clock,
            settings=shared.settings,
            sent=shared.loads.of(remote.target),
            outlasts=partial(self._outlasts, remote),
            probing=probing,
        )

    def close(self) -> None:
        """Close all remotes for good; tasks of the owner kill their cursors.

        This takes at most twice ``close_timeout`` plus one connection attempt.
        """
        self._closed = True
        for remote in list(self):
            self._close(remote)

    def _close(self, remote: Remote) -> None:
        self._close_cursor(remote)
        del self._by_number[remote.number]
        self._resources.memory.add(remotes=-1)

    def _close_cursor(self, remote: Remote) -> None:
        """Kill a remote's cursor in the background."""
        remote.end_delay()
        self._start(f"close {remote.target}", partial(_close_logged, remote.cursor), None)

    # Reading.

    async def _read(self, remote: Remote, cursor: RemoteCursor) -> None:
        """Read a remote's cursor until it is closed, ends or fails."""
        while True:
            try:
                batch = await cursor.read()
            except CommandError as error:
                if remote.number in self._by_number and remote.cursor is cursor:
                    self._failed(remote, error)
                return
            if batch is None:
                return
            self._pass_on(remote, batch)
            del batch  # the merge owns the events, and frees them while the next is awaited

    def _outlasts(self, remote: MergeInput) -> bool:
        """Return whether the stream waits for a remote however long it is away.

        No event is lost while the low watermark stands still, and a client that resumed would not
        be served sooner, unless the shard has left: drivers end a stream whose resumption fails.
        """
        has_left = remote.number in self._merged.membership.leaving
        return self._request.passthrough_to_shard is None and not has_left

    def probe(self, remote: Remote, seconds: float) -> None:
        """Probe a member within ``seconds``, in the background, unless it is being probed."""
        name = f"progress cursor of {remote.target}"
        self._start(name, partial(self._probe, remote, remote.cursor, seconds), None)

    async def _probe(self, remote: Remote, cursor: RemoteCursor, seconds: float) -> None:
        if (batch := await cursor.probe_progress(seconds)) is not None:
            self._pass_on(remote, batch)

    def _pass_on(self, remote: Remote, batch: CursorBatch) -> None:
        if remote.number in self._by_number:
            self._arrived(remote, batch)

    # Status.

    def describe(self) -> dict[str, Any]:
        """Return what serverStatus shows of the remotes and of their merge.

        ``waiting`` is whether the slowest shard keeps buffered events back.
        """
        merged, slowest = self._merged, self.slowest
        return {
            "bufferedBytes": Int64(merged.all_buffered_bytes),
            "heldBytes": Int64(merged.held_bytes),
            "slowestShard": None if slowest is None else slowest.target,
            "slowestReason": None if slowest is None else slowest.slowest_reason,
            "waiting": slowest is not None and merged.is_held_back,
            "remotes": [remote.describe(merged.buffered_bytes(remote.number)) for remote in self],
        }


async def _close_logged(cursor: RemoteCursor) -> None:
    """Close a cursor; a defect is logged, and is no failure of the stream."""
    try:
        await cursor.close()
    except Exception:
        log.exception("Unexpected error", target=cursor.name)
