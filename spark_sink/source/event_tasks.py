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
        stats, last = self.stats, cluster_time_of(run.keys[-1])
        first = stats.first if stats.events else cluster_time_of(run.keys[0])
        ticks, before = stats.ticks, stats.last if stats.events else first
        if before.time != last.time:  # a second was read to its end
            last_of_each = {key[2:10]: key for key in run.keys}
            times = [before, *map(cluster_time_of, last_of_each.values())]
            ended = [time.inc for time, later in pairwise(times) if time.time != later.time]
            ticks = max(ticks, *ended)
        events, size = stats.events + len(run), stats.size + sum(map(len, run.events))
        self.stats = ReadStats(events, size, first, last, ticks)

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


def divided(
    start: Position, end: Position, bounds: list[Timestamp], shards: Iterable[Shard] | None
) -> list[EventsTask]:
    """Return the tasks that read a range, which is divided at `bounds`.

    They read each shard's stream from its joining on, or the merged stream if `shards` is None.
    """
    sections = pairwise([start, *map(AtTime, bounds), end])
    if shards is None:
        return [EventsTask(left, right) for left, right in sections]
    in_order = sorted(shards, key=lambda shard: shard.name)
    tasks = []
    for left, right in sections:
        for number, shard in enumerate(in_order):
            # The merged stream contains a shard from the cluster time after its joining.
            begin = left if shard.joined is None else max(left, after(shard.joined), key=key_of)
            if key_of(begin) < key_of(right):
                before = tuple(other.name for other in in_order[:number])
                tasks.append(EventsTask(begin, right, shard.name, before))
    return tasks
