"""The remotes of one merged stream: opening, joining and leaving."""

from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bson.timestamp import Timestamp

from router.change_stream.actions import Action, CloseRemote, OpenRemote
from router.change_stream.resume_token import first_key
from router.change_stream.topology import (
    ShardAdded,
    ShardDraining,
    ShardRemoved,
    one_tick_after,
    topology_changes,
)
from router.merge.merger import Event, Merger

_MOST_REMOVED: Final = 100
"""Maximum of removed shards to remember, for clients that lag behind the removal."""


@dataclass(slots=True)
class Remote:
    """State of one remote in its stream.

    ``heard``: the first reply has arrived. ``invalidated``: the remote's change stream has ended at
    its promise. ``swallows``: the stream swallows an invalidate whose sort key begins so; after the
    remote's first event that is the event's cluster time, since only its cause has an invalidate's.
    ``swallowed`` is the sort key of the swallowed invalidate. ``removed_at``: the shard is gone
    once its promise has reached this sort key.
    """

    opening: OpenRemote
    heard: bool = False
    invalidated: bool = False
    swallows: bytes | None = None
    swallowed: bytes | None = None
    removed_at: bytes | None = None

    @property
    def target(self) -> str:
        """The shard's id, or "config"."""
        return self.opening.target


class ShardSpan(NamedTuple):
    """A shard that a stream reads, or has read, from ``since`` on.

    ``until`` is the sort key that the shard's remote had to reach when the shard left, or None
    while no removal has been seen.
    """

    shard: str
    host: str
    since: Timestamp
    until: bytes | None

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


class Remotes:
    """A stream's remotes by number, kept in step with the merger (docs/design.md#topology)."""

    def __init__(self, merger: Merger, start_at: Timestamp) -> None:
        """``start_at`` is the stream's start: no remote that joins later starts before it."""
        self._merger = merger
        self._start_at = start_at
        self._open: dict[int, Remote] = {}
        self._leaving: set[int] = set()
        self._removed: deque[ShardSpan] = deque(maxlen=_MOST_REMOVED)
        self._next = 0
        self.draining: set[str] = set()
        """Draining shards, which are about to leave."""

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def __getitem__(self, number: int) -> Remote:
        return self._open[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def get(self, number: int) -> Remote | None:
        """Return the remote, or None if it is closed."""
        return self._open.get(number)

    def follow(self, merger: Merger) -> None:
        """Keep in step with ``merger`` instead, a new one, which has heard from no remote."""
        self._merger = merger
        for number, remote in self._open.items():
            merger.add_remote(number, topology=remote.opening.topology)

    @property
    def targets(self) -> Mapping[int, str]:
        """Open remotes: number to target."""
        return {number: remote.target for number, remote in self._open.items()}

    def open(
        self,
        target: str,
        host: str,
        start_at: Timestamp,
        *,
        topology: bool = False,
        promise: bytes | None = None,
    ) -> OpenRemote:
        """Add a remote; ``promise`` is known beforehand, as for Merger.add_remote."""
        opening = OpenRemote(self._next, target, host, start_at, topology)
        self._next += 1
        self._open[opening.remote] = Remote(opening)
        self._merger.add_remote(opening.remote, promise=promise, topology=topology)
        return opening

    def open_removed(self, part: ShardSpan, start_at: Timestamp) -> OpenRemote:
        """Add a remote on a removed shard, for its events from ``start_at`` on."""
        assert part.until is not None
        opening = self.open(part.shard, part.host, max(start_at, part.since))
        self._leave(opening.remote, part.until)
        return opening

    def spans_beyond(self, key: bytes) -> frozenset[ShardSpan]:
        """Return the spans that may have events beyond a sort key.

        Of the removed shards only the latest are remembered.
        """
        removed = [each for each in self._removed if each.until is None or each.until > key]
        present = [
            ShardSpan(remote.target, remote.opening.host, remote.opening.start_at, None)
            for remote in self._open.values()
            if remote.removed_at is None and not remote.opening.topology
        ]
        return frozenset(removed + present)

    def change(self, events: list[Event]) -> list[Action]:
        """Apply the config server's events; open the shards that joined, one tick later.

        A new remote holds the gate at its start. A shard that returns after its removal counts as
        a new shard: writes to it in between do not belong to the cluster. If no removal was seen,
        the shard has left by the time of its return. Raises KeyError or InvalidBSON for events
        that are not of config.shards.
        """
        actions: list[Action] = []
        for change in topology_changes(events):
            if isinstance(change, ShardDraining):
                (self.draining.add if change.draining else self.draining.discard)(change.shard)
                continue
            self.draining.discard(change.shard)
            known = self._newest(change.shard)
            if isinstance(change, ShardRemoved):
                if known is not None and known.removed_at is None:
                    self._leave(known.opening.remote, first_key(one_tick_after(change.at)))
            elif known is None or known.removed_at is not None:
                actions.append(self._join(change))
            elif change.inserted and known.opening.start_at <= change.at:
                self._leave(known.opening.remote, first_key(change.at))
                actions.append(self._join(change))
            else:
                # The same shard, perhaps at other hosts: its replica set is followed elsewhere. An
                # insert before the remote's start is the one that put the shard on the list.
                known.opening = replace(known.opening, host=change.host)
        return actions

    def listed(self, shards: Set[str], draining: Set[str], by: Timestamp) -> list[Action]:
        """Remove the draining shards that a shard list, read by the time ``by``, no longer has.

        ``shards`` are all shards in the list, ``draining`` those of them that drain.
        """
        for shard in self.draining - shards:
            known = self._newest(shard)
            if known is None or known.removed_at is not None:
                continue
            if known.opening.start_at <= by:  # otherwise it returned after the list was read
                self._leave(known.opening.remote, first_key(one_tick_after(by)))
        self.draining &= draining
        return self.close_removed()

    @property
    def leaving(self) -> Set[int]:
        """The removed shards' remotes whose promises have not passed the removal."""
        return self._leaving

    def close_removed(self) -> list[Action]:
        """Close the removed shards' remotes whose promises have passed the removal."""
        gone: list[Action] = []
        for number in sorted(self._leaving):
            removed_at = self._open[number].removed_at
            if removed_at is not None and (self._merger.promise(number) or b"") >= removed_at:
                del self._open[number]
                self._leaving.discard(number)
                self._merger.retire_remote(number, before=removed_at)
                gone.append(CloseRemote(number))
        return gone

    def _leave(self, number: int, removed_at: bytes) -> None:
        remote = self._open[number]
        remote.removed_at = removed_at
        self._leaving.add(number)
        opening = remote.opening
        self._removed.append(ShardSpan(opening.target, opening.host, opening.start_at, removed_at))

    def _join(self, change: ShardAdded) -> OpenRemote:
        start_at = max(one_tick_after(change.at), self._start_at)
        return self.open(change.shard, change.host, start_at, promise=first_key(start_at))

    def _newest(self, shard: str) -> Remote | None:
        """Return the newest remote on a shard."""
        for remote in reversed(self._open.values()):
            if remote.target == shard and not remote.opening.topology:
                return remote
        return None
