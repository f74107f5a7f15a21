"""The remotes of one merged stream: opening, joining and leaving."""

from collections import deque
from collections.abc import Set
from typing import Any, Final, NamedTuple, Self

import bson
from bson.timestamp import Timestamp

from router.stream.merge.merger import MergeInput, Merger, SkippedTime
from shard_client.bson.resume_token import cluster_time_of, first_key, next_tick
from shard_client.remote_cursor.cursor_reply import Event

_MOST_REMOVED: Final = 100
"""Maximum of removed shards to remember, for clients that lag behind the removal."""


class ShardSpan(NamedTuple):
    """A shard that a stream reads, or has read, from ``since`` on.

    ``until`` is the sort key that the shard's remote had to reach when the shard left, or None
    while no removal has been seen.
    """

    shard: str
    host: str
    since: Timestamp
    until: bytes | None
    skipped_time: SkippedTime = None

    @classmethod
    def of(cls, remote: MergeInput) -> Self:
        """Return what a remote reads of its shard."""
        read = remote.target, remote.host, remote.start_at
        return cls(*read, remote.removed_at, remote.skipped_time)

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
        self.leaving: dict[int, bytes] = {}
        """The removed shards' remotes whose watermarks have not passed the removal, and the sort
        key that they have to reach for that."""
        self._removed: deque[MergeInput] = deque(maxlen=_MOST_REMOVED)
        self.changes = 0
        """How often remotes have been added or retired, or are to be opened again."""
        self.draining: set[str] = set()
        """Draining shards, which are about to leave."""

    def open(self, remote: MergeInput) -> None:
        """Add a remote."""
        self.changes += 1
        self._merger.add_remote(remote)

    def open_removed(self, span: ShardSpan, start_at: Timestamp) -> None:
        """Add a remote on a removed shard, for its events from ``start_at`` on."""
        assert span.until is not None
        since = max(start_at, span.since)
        remote = MergeInput(span.shard, span.host, since, skipped_time=span.skipped_time)
        self.open(remote)
        self._leave(remote, span.until)

    def reopen(self, remote: MergeInput, start_after: bytes) -> None:
        """Let a remote be opened again after the raw token of its invalidate."""
        remote.opens_at = start_after
        self.changes += 1

    def spans_beyond(self, key: bytes) -> frozenset[ShardSpan]:
        """Return the spans that may have events beyond a sort key.

        Of the removed shards only the latest are remembered.
        """
        spans = map(ShardSpan.of, [*self._removed, *self._of_shards])
        return frozenset(span for span in spans if span.until is None or span.until > key)

    def change(self, events: list[Event]) -> None:
        """Apply the config server's events; open the shards that joined, one tick later.

        In-place updates of a shard's document (its state, members that join or leave) do not affect
        a stream, since members are monitored elsewhere. The exception is draining, because the
        later removal may not produce an event: on 6.0 it is a plain applyOps command, which no
        change stream unwinds (docs/protocol.md#sharded-cluster). Raises KeyError or InvalidBSON for
        events that are not of config.shards.
        """
        for key, raw in events:
            event: dict[str, Any] = bson.decode(raw)
            at = cluster_time_of(key)
            match event["operationType"]:
                case "insert" | "replace" as how:
                    document = event["fullDocument"]
                    inserted = how == "insert"
                    self._add_shard(document["_id"], document["host"], at, inserted=inserted)
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
                    if (known := self._find(shard)) is not None:
                        self._leave(known, first_key(next_tick(at)))

    def _add_shard(self, shard: str, host: str, at: Timestamp, *, inserted: bool) -> None:
        """Process that ``shard`` belongs to the cluster, at ``host``, from ``at`` on.

        A new remote holds the low watermark at its start. A shard that returns after its removal
        counts as a new shard: writes to it in between do not belong to the cluster. If no removal
        was seen, the shard has left by the time of its return, where its document is ``inserted``.
        """
        self.draining.discard(shard)
        known = self._find(shard)
        if known is not None and not (inserted and known.start_at <= at):
            # The same shard, perhaps at other hosts: its replica set is followed elsewhere. An
            # insert before the remote's start is the one that put the shard on the list.
            known.host = host
            return
        if known is not None:
            self._leave(known, first_key(at))
        self._join(shard, host, at)

    def _join(self, shard: str, host: str, at: Timestamp) -> None:
        start_at = max(next_tick(at), self._start_at)
        self.open(MergeInput(shard, host, start_at, watermark=first_key(start_at)))

    def apply_list(self, shards: Set[str], draining: Set[str], by: Timestamp) -> None:
        """Remove the draining shards that a shard list, read by the time ``by``, no longer has.

        ``shards`` are all shards in the list, ``draining`` those of them that drain.
        """
        for shard in self.draining - shards:
            known = self._find(shard)
            # A shard whose remote starts later has returned after the list was read.
            if known is not None and known.start_at <= by:
                self._leave(known, first_key(next_tick(by)))
        self.draining &= draining
        self.retire_removed()

    def retire_removed(self) -> None:
        """Retire the removed shards' remotes whose watermarks have passed the removal."""
        for number, removed_at in sorted(self.leaving.items()):
            if self._merger.remotes[number].watermark >= removed_at:
                del self.leaving[number]
                self._merger.retire_remote(number, before=removed_at)
                self.changes += 1

    def _leave(self, remote: MergeInput, removed_at: bytes) -> None:
        remote.removed_at = removed_at
        self.leaving[remote.number] = removed_at
        self._removed.append(remote)

    @property
    def _of_shards(self) -> list[MergeInput]:
        """The remotes on shards that have not left."""
        remotes = self._merger.remotes.values()
        return [remote for remote in remotes if remote.removed_at is None and not remote.topology]

    def _find(self, shard: str) -> MergeInput | None:
        return next((remote for remote in self._of_shards if remote.target == shard), None)
