"""The remotes of one merged stream: opening, joining and leaving."""

from collections import deque
from collections.abc import Set
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self

import bson
from bson.timestamp import Timestamp

from router.stream.merger import Action, CloseRemote, Merger, OpenRemote, RemoteQueue
from shard_client.bson.resume_token import cluster_time_of, first_key, next_tick
from shard_client.remote_cursor.cursor_reply import Event

_MOST_REMOVED: Final = 100
"""Maximum of removed shards to remember, for clients that lag behind the removal."""


class ShardSpan(NamedTuple):
    """A shard that a stream reads, or has read, from ``since`` on.

    ``until`` is the sort key that the shard's remote had to reach when the shard left, or None
    while no removal has been seen. ``skips_at`` is as for ``RemoteQueue``.
    """

    shard: str
    host: str
    since: Timestamp
    until: bytes | None
    skips_at: bytes | None = None

    @classmethod
    def of(cls, remote: RemoteQueue) -> Self:
        """Return what a remote reads of its shard."""
        opening = remote.opening
        read = opening.target, opening.host, opening.start_at
        return cls(*read, remote.removed_at, remote.skips_at)

    def covers(self, other: "ShardSpan", key: bytes) -> bool:
        """Return whether it covers all of ``other``'s events beyond the sort key ``key``."""
        return (
            self.shard == other.shard
            and first_key(self.since) <= max(key, first_key(other.since))
            and (self.until is None or other.until is None or self.until == other.until)
        )


def covers_all(spans: Set[ShardSpan], others: Set[ShardSpan], key: bytes) -> bool:
    """Return whether ``spans`` cover all events of ``others`` beyond the sort key ``key``."""
    return all(any(span.covers(other, key) for span in spans) for other in others)


class Membership:
    """The remotes of a merge as shards join and leave (docs/design.md#topology)."""

    def __init__(self, merger: Merger, start_at: Timestamp) -> None:
        """``start_at`` is the stream's start: no remote that joins later starts before it."""
        self._merger = merger
        self._start_at = start_at
        self.leaving: set[int] = set()
        """The removed shards' remotes whose watermarks have not passed the removal."""
        self._removed: deque[RemoteQueue] = deque(maxlen=_MOST_REMOVED)
        self._next = 0
        self.draining: set[str] = set()
        """Draining shards, which are about to leave."""

    def open(
        self,
        target: str,
        host: str,
        start_at: Timestamp,
        *,
        topology: bool = False,
        watermark: bytes = b"",
        skips_at: bytes | None = None,
    ) -> OpenRemote:
        """Add a remote; ``watermark`` and ``skips_at`` are as for ``RemoteQueue``."""
        opening = OpenRemote(self._next, target, host, start_at, topology)
        self._next += 1
        self._merger.add_remote(RemoteQueue(opening, watermark, skips_at))
        return opening

    def open_removed(self, span: ShardSpan, start_at: Timestamp) -> OpenRemote:
        """Add a remote on a removed shard, for its events from ``start_at`` on."""
        assert span.until is not None
        since = max(start_at, span.since)
        opening = self.open(span.shard, span.host, since, skips_at=span.skips_at)
        self._leave(opening.remote, span.until)
        return opening

    def spans_beyond(self, key: bytes) -> frozenset[ShardSpan]:
        """Return the spans that may have events beyond a sort key.

        Of the removed shards only the latest are remembered.
        """
        removed = [remote for remote in self._removed if (remote.removed_at or b"") > key]
        present = [
            remote
            for remote in self._merger.remotes.values()
            if remote.removed_at is None and not remote.opening.topology
        ]
        return frozenset(map(ShardSpan.of, removed + present))

    def change(self, events: list[Event]) -> list[Action]:
        """Apply the config server's events; open the shards that joined, one tick later.

        In-place updates of a shard's document (its state, members that join or leave) do not affect
        a stream, since members are monitored elsewhere. The exception is draining, because the
        later removal may not produce an event: on 6.0 it is a plain applyOps command, which no
        change stream unwinds (docs/protocol.md#sharded-cluster). Raises KeyError or InvalidBSON for
        events that are not of config.shards.
        """
        actions: list[Action] = []
        for key, raw in events:
            event: dict[str, Any] = bson.decode(raw)
            at = cluster_time_of(key)
            match event["operationType"]:
                case "insert" | "replace" as how:
                    document = event["fullDocument"]
                    inserted = how == "insert"
                    actions += self._added(document["_id"], document["host"], at, inserted=inserted)
                case "update":
                    update = event.get("updateDescription", {})
                    changed = update.get("updatedFields", {})
                    if changed.get("draining"):
                        self.draining.add(event["documentKey"]["_id"])
                    elif "draining" in changed or "draining" in update.get("removedFields", ()):
                        self.draining.discard(event["documentKey"]["_id"])
                case "delete":
                    shard = event["documentKey"]["_id"]
                    self.draining.discard(shard)
                    known = self._newest(shard)
                    if known is not None and known.removed_at is None:
                        self._leave(known.opening.remote, first_key(next_tick(at)))
        return actions

    def _added(self, shard: str, host: str, at: Timestamp, *, inserted: bool) -> list[Action]:
        """Process that ``shard`` belongs to the cluster, at ``host``, from ``at`` on.

        A new remote holds the low watermark at its start. A shard that returns after its removal
        counts as a new shard: writes to it in between do not belong to the cluster. If no removal
        was seen, the shard has left by the time of its return, where its document is ``inserted``.
        """
        self.draining.discard(shard)
        known = self._newest(shard)
        if known is None or known.removed_at is not None:
            return [self._join(shard, host, at)]
        if inserted and known.opening.start_at <= at:
            self._leave(known.opening.remote, first_key(at))
            return [self._join(shard, host, at)]
        # The same shard, perhaps at other hosts: its replica set is followed elsewhere. An insert
        # before the remote's start is the one that put the shard on the list.
        known.opening = replace(known.opening, host=host)
        return []

    def listed(self, shards: Set[str], draining: Set[str], by: Timestamp) -> list[Action]:
        """Remove the draining shards that a shard list, read by the time ``by``, no longer has.

        ``shards`` are all shards in the list, ``draining`` those of them that drain.
        """
        for shard in self.draining - shards:
            known = self._newest(shard)
            if known is None or known.removed_at is not None:
                continue
            if known.opening.start_at <= by:  # otherwise it returned after the list was read
                self._leave(known.opening.remote, first_key(next_tick(by)))
        self.draining &= draining
        return self.close_removed()

    def close_removed(self) -> list[Action]:
        """Close the removed shards' remotes whose watermarks have passed the removal."""
        gone: list[Action] = []
        for number in sorted(self.leaving):
            remote = self._merger.remotes[number]
            removed_at = remote.removed_at
            if removed_at is not None and remote.watermark >= removed_at:
                self.leaving.discard(number)
                self._merger.retire_remote(number, before=removed_at)
                gone.append(CloseRemote(number))
        return gone

    def _leave(self, number: int, removed_at: bytes) -> None:
        remote = self._merger.remotes[number]
        remote.removed_at = removed_at
        self.leaving.add(number)
        self._removed.append(remote)

    def _join(self, shard: str, host: str, at: Timestamp) -> OpenRemote:
        start_at = max(next_tick(at), self._start_at)
        return self.open(shard, host, start_at, watermark=first_key(start_at))

    def _newest(self, shard: str) -> RemoteQueue | None:
        """Return the newest remote on a shard."""
        for remote in reversed(self._merger.remotes.values()):
            if remote.target == shard and not remote.opening.topology:
                return remote
        return None
