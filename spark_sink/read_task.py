"""What one task of a micro-batch reads: a stretch of the merged stream, or of one shard's part.

The shards' parts together are the merged stream: each shard's own stream holds its events with the
tokens that they have in the merged one (docs/protocol.md#sharded-cluster). Events of collections
and databases, such as the drop of a sharded collection, may be reported by several shards under one
token; the first of these shards in the order of the batch's list passes it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from spark_sink.event_runs import Run
from spark_sink.event_stream import EventStream, read_runs
from spark_sink.pace import Passage
from spark_sink.patience import DEFAULT_PATIENCE, Patience
from spark_sink.positions import AtTime, Position, Token, is_of_document, key_of, time_in, time_of
from spark_sink.router_client import Shard
from spark_sink.watched_stream import WatchedStream

Watch = Callable[[Position, "str | None"], WatchedStream]
"""Opens a stream after a position: of the one shard that is named, or the merged one."""


@dataclass(frozen=True)
class ReadTask:
    """The events after `start`, up to and including `end` where that is a token.

    shard: whose events, None for the merged stream; before: the shards that come before it in the
    batch's list; batch: tells the batches of a planner apart; report_to: the planner's address.
    """

    start: Position
    end: Position
    shard: str | None = None
    before: tuple[str, ...] = ()
    batch: int = 0
    report_to: tuple[str, int, str] | None = None


class TaskReader:
    """Reads a task's events, and knows afterwards what has passed.

    watch: opens streams; patience: how long failures of theirs are tried again.
    """

    def __init__(self, task: ReadTask, watch: Watch, patience: Patience = DEFAULT_PATIENCE) -> None:
        self._task = task
        self._watch = watch
        self._patience = patience
        self._events = self._size = self._ticks = 0
        self._first = self._last = ""

    def events(self) -> Iterator[RawBSONDocument]:
        """The events in the order of the stream. Raises StreamError."""
        for run in self.runs():
            yield from run.documents()

    def runs(self) -> Iterator[Run]:
        """The same events, a reply's at a time. Raises StreamError."""
        task = self._task
        stream = self._stream(task.shard, task.start)
        try:
            for run in read_runs(stream, task.end):
                own = self._own(run)
                if own.keys:
                    self._count(own)
                    yield own
        finally:
            stream.close()

    @property
    def passage(self) -> Passage:
        """What has passed so far."""
        if not self._events:
            return Passage(0, 0, Timestamp(0, 0), Timestamp(0, 0))
        first, last = time_in(self._first), time_in(self._last)
        return Passage(self._events, self._size, first, last, self._ticks)

    def _count(self, run: Run) -> None:
        keys = run.keys
        last = self._last or keys[0]
        self._first = self._first or keys[0]
        if last[2:10] != keys[-1][2:10]:  # a second has ended
            for before, key in pairwise((last, *keys)):
                if before[2:10] != key[2:10]:
                    self._ticks = max(self._ticks, int(before[10:18], 16))
        self._last = keys[-1]
        self._events += len(run)
        self._size += sum(map(len, run.events))

    def _own(self, run: Run) -> Run:
        """The events that this task passes on."""
        if not self._task.before:
            return run
        own = [index for index, key in enumerate(run.keys) if not self._is_anothers(key)]
        if len(own) == len(run):
            return run
        return Run([run.keys[index] for index in own], [run.events[index] for index in own])

    def _is_anothers(self, key: str) -> bool:
        """Whether another shard's task passes the event on."""
        if is_of_document(key):
            return False
        return any(self._reports(shard, key) for shard in self._task.before)

    def _reports(self, shard: str, key: str) -> bool:
        token = Token({"_data": key})
        stream = self._stream(shard, AtTime(token.cluster_time))
        try:
            return any(key in run.keys for run in read_runs(stream, token))
        finally:
            stream.close()

    def _stream(self, shard: str | None, start: Position) -> EventStream:
        # A token of another shard's event cannot be resumed from on this one: its time can.
        time = time_of(start)
        opened = start if shard is None or time is None else AtTime(time)
        return EventStream(
            lambda at: self._watch(at, shard),
            opened,
            after=key_of(start),
            patience=self._patience,
        )


def merged_tasks(start: Position, end: Position, bounds: list[Timestamp]) -> list[ReadTask]:
    """The merged stream in contiguous stretches, cut at `bounds`: their order is the stream's."""
    cuts: list[Position] = [start, *map(AtTime, bounds), end]
    return [ReadTask(left, right) for left, right in pairwise(cuts)]


def shard_tasks(
    start: Position, end: Position, bounds: list[Timestamp], shards: list[Shard]
) -> list[ReadTask]:
    """Each shard's stream in contiguous stretches; those before a shard's joining are left out."""
    names = sorted(shard.name for shard in shards)
    tasks = []
    for stretch in merged_tasks(start, end, bounds):
        for shard in sorted(shards, key=lambda shard: shard.name):
            begin = _begin(stretch.start, shard)
            if key_of(begin) < key_of(stretch.end):
                before = tuple(names[: names.index(shard.name)])
                tasks.append(ReadTask(begin, stretch.end, shard.name, before))
    return tasks


def _begin(start: Position, shard: Shard) -> Position:
    if shard.joined is None:
        return start
    # The merged stream takes a shard in from the tick after its joining.
    joining = AtTime(Timestamp(shard.joined.time, shard.joined.inc + 1))
    return joining if key_of(joining) > key_of(start) else start
