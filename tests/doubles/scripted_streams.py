"""Scripted shards whose events arrive in batches of random size, in any order."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from bson.timestamp import Timestamp

from router.request.stream_request import StreamRequest
from router.stream.merge.merged_stream import MergedStream
from router.stream.readers.log_reader import MAX_BATCH_BYTES, Batch, LogReader
from router.stream.readers.resume_point import starting_point
from shard_client.bson.resume_token import TIME_DIGITS, ResumeToken, cluster_time_of, version_of
from shard_client.remote_cursor.cursor_reply import CursorBatch, KeyedToken, token_key, token_of

Event = tuple[bytes, bytes]


def keyed(events: Iterable[bytes]) -> list[Event]:
    """Pair raw events with their sort keys."""
    return [(token_key(token_of(event)), event) for event in events]


@dataclass
class Script:
    """One shard's ordered events, its last watermark, and whether it ends with an invalidate."""

    events: Sequence[Event]
    last_pbrt: bytes
    invalidated: bool = False
    version: int = 1

    def batches(self, start_at: Timestamp, rnd: Random) -> deque[CursorBatch]:
        """Cut the events at or after ``start_at`` into batches, the first of which is empty."""
        first = ResumeToken.high_water_mark(start_at, self.version)
        events = [event for event in self.events if event[0] >= first.data]
        cuts = sorted(rnd.choices(range(len(events) + 1), k=rnd.randrange(7)))
        result = deque([batch([], first.raw)])
        bounds = [0, *cuts, len(events)]
        for start, end in pairwise(bounds):
            part = events[start:end]
            if part and end < len(events):
                result.append(batch(part, token_of(part[-1][1])))
                if rnd.random() < 0.3:
                    result.append(self._silence(events, end, part[-1][0]))
            elif part and not self.invalidated and rnd.random() < 0.5:
                result.append(batch(part, token_of(part[-1][1])))
                result.append(batch([], self.last_pbrt))
            elif part:
                result.append(batch(part, self.last_pbrt, invalidated=self.invalidated))
        reached = result[-1].watermark
        if reached is None or token_key(self.last_pbrt) > reached.key:
            result.append(batch([], self.last_pbrt, invalidated=self.invalidated))
        return result

    def _silence(self, events: Sequence[Event], end: int, last: bytes) -> CursorBatch:
        """Return an empty batch whose watermark lies between two events, if there is room."""
        mark = ResumeToken.high_water_mark(cluster_time_of(events[end][0]), self.version)
        return batch([], mark.raw if mark.data > last else token_of(events[end - 1][1]))


def batch(events: list[Event], pbrt: bytes, *, invalidated: bool = False) -> CursorBatch:
    size = sum(len(raw) for _, raw in events)
    watermark = KeyedToken.of(pbrt) if pbrt else None
    return CursorBatch(
        0 if invalidated else 7, list(events), watermark, size, invalidated=invalidated
    )


class PrivateStream(MergedStream):
    """A merged stream with one reader that reads from the start."""

    def __init__(
        self,
        request: StreamRequest,
        shards: Mapping[str, str],
        *,
        start_at: Timestamp,
        topology_from: Timestamp,
        token_version: int = 1,
        **more: Any,
    ) -> None:
        super().__init__(request, shards, start_at=start_at, topology_from=topology_from, **more)
        self.log_reader = LogReader(self, starting_point(request, start_at, token_version))

    @property
    def ready(self) -> bool:
        return self.log_reader.prepare()

    def take(self, max_events: int | None, max_bytes: int = MAX_BATCH_BYTES) -> Batch:
        return self.log_reader.take(max_events, max_bytes)


@dataclass
class Driver:
    """Runs a stream with one reader against scripts; ``rnd`` makes every choice.

    ``reopened`` returns the script of a shard that is reopened after an invalidate.
    """

    stream: PrivateStream
    scripts: Mapping[str, Script]
    rnd: Random
    reopened: Callable[[str, bytes], Script] | None = None
    max_events: int = 400
    pending: dict[int, deque[CursorBatch]] = field(default_factory=dict)
    begun: dict[int, Timestamp | bytes] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    taken: list[Batch] = field(default_factory=list)

    @property
    def events(self) -> list[bytes]:
        return [event for taken in self.taken for event in taken.events]

    def follow(self, stream: PrivateStream, reader: LogReader | None) -> None:
        """Continue with another stream; a reader moves to it."""
        self.stream = stream
        if reader is not None:
            reader.continue_on(stream)
            stream.log_reader = reader
        self.pending.clear()
        self.follow_merge()

    def follow_merge(self) -> None:
        """Open, reopen and close remotes, so that those of the merge are open."""
        remotes = self.stream.merger.remotes
        for gone in self.pending.keys() - remotes.keys():
            del self.pending[gone]
        for number, remote in remotes.items():
            begins, target = remote.opens_at, remote.target
            if number in self.pending and self.begun[number] == begins:
                continue
            self.begun[number] = begins
            self.opened.add(target)
            if isinstance(begins, Timestamp):
                self.pending[number] = self.scripts[target].batches(begins, self.rnd)
                continue
            assert self.reopened is not None
            at = cluster_time_of(token_key(begins))
            self.pending[number] = self.reopened(target, begins).batches(at, self.rnd)
            self.pending[number][0] = batch([], begins)

    def run(self) -> "Driver":
        """Deliver and take all batches, until the stream closes or nothing is left."""
        self.follow_merge()
        while True:
            waiting = [remote for remote, batches in self.pending.items() if batches]
            if waiting and self.rnd.random() < 0.7:
                remote = self.rnd.choice(waiting)
                self.stream.batch_arrived(remote, self.pending[remote].popleft())
                self.follow_merge()
            elif self.stream.ready or self.rnd.random() < 0.2:
                taken = self.take()
                if taken.closed:
                    return self
            if not any(self.pending.values()) and not self.stream.ready:
                self.taken.append(self.stream.take(None))
                return self

    def take(self) -> Batch:
        limit = self.rnd.choice([None, 1, self.rnd.randrange(1, self.max_events)])
        space = self.rnd.choice([16 << 20, 5000])
        was_ready = self.stream.ready
        taken = self.stream.take(limit, space)
        if was_ready:
            assert taken.events or taken.closed
        assert taken.size == sum(map(len, taken.events))
        assert limit is None or len(taken.events) <= limit
        assert len(taken.events) <= 1 or taken.size <= space
        if self.taken:
            assert not _precedes(token_key(taken.pbrt), token_key(self.taken[-1].pbrt))
        if taken.events:
            assert token_key(taken.pbrt) >= token_key(token_of(taken.events[-1]))
        self.taken.append(taken)
        return taken


def _precedes(key: bytes, other: bytes) -> bool:
    """Return whether a key is before another; of two versions, only cluster times are compared."""
    size = None if version_of(key) == version_of(other) else TIME_DIGITS
    return key[:size] < other[:size]


def hwm(time: int, inc: int = 0, version: int = 1) -> bytes:
    """Return the raw token document of a high water mark."""
    return ResumeToken.high_water_mark(Timestamp(time, inc), version).raw
