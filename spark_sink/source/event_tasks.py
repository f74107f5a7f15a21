"""Tasks of a micro-batch: a range of the merged stream, or of one shard's own stream.

The streams of all shards together are the merged stream: each has its shard's events with the
tokens of the merged stream (docs/protocol.md#sharded-cluster). Several shards may report one event
of a collection or a database under one token; the first of them in the batch's list returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import cluster_time_of, is_of_document
from spark_sink.events.positions import AtTime, Position, Token, after, key_of, time_of
from spark_sink.events.runs import Run
from spark_sink.options.stream_options import DEFAULT_RETRY_POLICY, RetryPolicy
from spark_sink.source.task_reports import Address, ReadStats
from spark_sink.stream.event_stream import EventStream, read_runs
from spark_sink.stream.raw_replies import StreamCursor
from spark_sink.stream.router_client import Shard

Watch = Callable[[Position, "str | None"], StreamCursor]
"""Opens a stream after a position: of the one shard that is named, or the merged one."""


@dataclass(frozen=True)
class EventsTask:
    """The events after `start`, up to and including `end` if that is a token.

    Args:
        shard: whose events; None for the merged stream.
        before: the shards before it in the batch's list.
        report_to: the planner's address.
    """

    start: Position
    end: Position
    shard: str | None = None
    before: tuple[str, ...] = ()
    report_to: Address | None = None


class TaskReader:
    """Reads a task's events; `stats` then has their number, bytes and cluster times."""

    def __init__(
        self, task: EventsTask, watch: Watch, retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY
    ) -> None:
        self._task = task
        self._watch = watch
        self._retry_policy = retry_policy
        self.stats = ReadStats(0, 0, Timestamp(0, 0), Timestamp(0, 0))
        """What was read so far."""
        self._last = ""

    def events(self) -> Iterator[bytes]:
        """Return the events in the order of the stream. Raises StreamError."""
        for run in self.runs():
            yield from run.events

    def runs(self) -> Generator[Run]:
        """Return the same events, one server reply at a time. Raises StreamError."""
        task = self._task
        with closing(self._stream(task.shard, task.start)) as stream:
            for run in read_runs(stream, task.end):
                own = self._own(run)
                if own.keys:
                    self._count(own)
                    yield own

    def _count(self, run: Run) -> None:
        keys, stats = run.keys, self.stats
        last, ticks = self._last or keys[0], stats.ticks
        if last[2:10] != keys[-1][2:10]:  # a second was read to its end
            for before, key in pairwise((last, *keys)):
                if before[2:10] != key[2:10]:
                    ticks = max(ticks, int(before[10:18], 16))
        self._last = keys[-1]
        events, size = stats.events + len(run), stats.size + sum(map(len, run.events))
        first = stats.first if stats.events else cluster_time_of(keys[0])
        self.stats = ReadStats(events, size, first, cluster_time_of(keys[-1]), ticks)

    def _own(self, run: Run) -> Run:
        """Leave out the events that another shard's task returns."""
        if not self._task.before or all(map(is_of_document, run.keys)):
            return run
        own = [
            index
            for index, key in enumerate(run.keys)
            if is_of_document(key)
            or not any(self._reports(each, key) for each in self._task.before)
        ]
        return Run([run.keys[index] for index in own], [run.events[index] for index in own])

    def _reports(self, shard: str, key: str) -> bool:
        """Return whether the stream of a shard has an event."""
        token = Token({"_data": key})
        with closing(self._stream(shard, AtTime(token.cluster_time))) as stream:
            return any(key in run.keys for run in read_runs(stream, token))

    def _stream(self, shard: str | None, start: Position) -> EventStream:
        # A shard cannot resume from the token of another shard's event, but from its time.
        time = time_of(start)
        opened = start if shard is None or time is None else AtTime(time)
        return EventStream(
            lambda at: self._watch(at, shard),
            opened,
            after=key_of(start),
            retry_policy=self._retry_policy,
        )


def merged_tasks(start: Position, end: Position, bounds: list[Timestamp]) -> list[EventsTask]:
    """Return the tasks of the merged stream, divided at `bounds`, in order."""
    cuts: list[Position] = [start, *map(AtTime, bounds), end]
    return [EventsTask(left, right) for left, right in pairwise(cuts)]


def shard_tasks(sections: Iterable[EventsTask], shards: Iterable[Shard]) -> list[EventsTask]:
    """Return the tasks of each shard's stream in sections of the merged one.

    They begin with the shard's joining.
    """
    in_order = sorted(shards, key=lambda shard: shard.name)
    tasks = []
    for section in sections:
        for number, shard in enumerate(in_order):
            begin = _begin(section.start, shard)
            if key_of(begin) < key_of(section.end):
                before = tuple(other.name for other in in_order[:number])
                tasks.append(EventsTask(begin, section.end, shard.name, before))
    return tasks


def _begin(start: Position, shard: Shard) -> Position:
    if shard.joined is None:
        return start
    # The merged stream contains a shard from the cluster time after its joining.
    joining = after(shard.joined)
    return joining if key_of(joining) > key_of(start) else start
