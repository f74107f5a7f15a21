"""Surroundings of the Spark source, without a server: a history of events, a clock, an inbox."""

import bisect
import time
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from shard_client.bson.resume_token import high_water_mark
from spark_sink.events.positions import AtTime, FromNow, Position, Token
from spark_sink.events.runs import Run, run_of
from spark_sink.options.stream_options import StreamOptions
from spark_sink.source.event_planner import EventPlanner
from spark_sink.source.task_reports import ReadStats, ReportInbox
from spark_sink.stream.event_stream import EventStream
from spark_sink.stream.raw_replies import StreamCursor
from spark_sink.stream.router_client import Clocks, Shard

SHARDS = 3
UUID_HEX = "00112233445566778899AABBCCDDEEFF"


def event_token(seconds: int, increment: int, suffix: str = "", *, invalidate: bool = False) -> str:
    flag = "6F" if invalidate else "6E"
    return f"82{seconds:08X}{increment:08X}2B022C010029{flag}5A1004{UUID_HEX}{suffix}04"


def event_row(kind: str, tick: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a row of the source with an event of shop.orders."""
    event = {"operationType": kind, "ns": {"db": "shop", "coll": "orders"}, **fields}
    return {"token": event_token(1, tick), "event": bson.encode(event)}


def runs_of(events: Iterable[RawBSONDocument]) -> Iterator[Run]:
    """Return each event as a run of its own."""
    return (run_of([bytes(event.raw)]) for event in events)


class History:
    """Events in order. `now` is the cluster time; every added event advances it by one.

    `pauses` holds indexes of events before which a stream has nothing to return, once.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.shards: list[int] = []
        self.beginning = self.now = Timestamp(1_700_000_000, 1)
        self.frozen = False
        self.open_streams = 0
        self.opened = 0
        self.events_sent = 0
        self.failures: list[PyMongoError] = []
        self.pauses: set[int] = set()

    def tick(self, seconds: int = 0) -> Timestamp:
        self.now = Timestamp(self.now.time + seconds, 1 if seconds else self.now.inc + 1)
        return self.now

    def add(self, data: str, shard: int = 0, **fields: Any) -> dict[str, Any]:
        event = {"_id": {"_data": data}, "clusterTime": self.now, **fields}
        self.keys.append(data)
        self.events.append(event)
        self.shards.append(shard)
        return event

    def insert(self, number: int, *, same_tick: bool = False, **document: Any) -> dict[str, Any]:
        time = self.now if same_tick else self.tick()
        return self.add(
            event_token(time.time, time.inc, f"46645F696400{number:024X}00"),
            number % SHARDS,
            operationType="insert",
            ns={"db": "shop", "coll": "orders"},
            documentKey={"_id": number},
            fullDocument={"_id": number, **document},
        )

    def insert_large(self, number: int, fragments: int) -> None:
        """Add the insert of a large document as fragments of one event."""
        time = self.tick()
        fields: list[dict[str, Any]] = [
            {"operationType": "insert", "documentKey": {"_id": number}},
            *({f"field{each}": each} for each in range(2, fragments + 1)),
        ]
        for index, part in enumerate(fields, 1):
            suffix = f"46645F696400{number:024X}002B{index << 1:02X}"
            place = {"fragment": index, "of": fragments}
            token = event_token(time.time, time.inc, suffix)
            self.add(token, number % SHARDS, splitEvent=place, **part)

    def drop(self, shards: int = 1, *, invalidate: bool = False) -> None:
        """Add the drop of a sharded collection: several events with the same token."""
        time = self.tick()
        for shard in range(shards):
            self.add(event_token(time.time, time.inc), shard, operationType="drop")
        for shard in range(shards if invalidate else 0):
            token = event_token(time.time, time.inc, invalidate=True)
            self.add(token, shard, operationType="invalidate")

    def start_of(self, position: Position) -> tuple[int, str]:
        """Return the index of the first event after a position, and the token to begin with."""
        match position:
            case Token():
                return bisect.bisect_right(self.keys, position.data), position.data
            case AtTime(time):
                data = high_water_mark(time)
                return bisect.bisect_left(self.keys, data), data
            case FromNow():
                self.tick()
                return len(self.keys), high_water_mark(self.now)

    def watch(self, position: Position, shard: str | None = None) -> "FakeStream":
        if self.failures:
            raise self.failures.pop(0)
        return FakeStream(self, position, shard=None if shard is None else int(shard))


class FakeStream(StreamCursor):
    """A cursor on a history, in batches of `batch` events."""

    def __init__(
        self, history: History, position: Position, batch: int = 3, shard: int | None = None
    ) -> None:
        self.history = history
        self.batch = batch
        self.shard = shard
        self.index, data = history.start_of(position)
        self.left_in_batch = 0
        self.pauses = set(history.pauses)
        self._alive = True
        self.resume_token = {"_data": data}
        history.open_streams += 1
        history.opened += 1

    @property
    def alive(self) -> bool:
        return self._alive

    def try_next(self) -> RawBSONDocument | None:
        history = self.history
        if history.failures:
            raise history.failures.pop(0)
        self._skip_other_shards()
        if self.index in self.pauses:
            self.pauses.discard(self.index)
            self.left_in_batch = 0
            return None
        if not self.left_in_batch:
            self.left_in_batch = min(self.batch, len(history.events) - self.index)
            if not self.left_in_batch:
                time = history.now if history.frozen else history.tick()  # a no-op advances it
                beyond = {"_data": high_water_mark(time)}
                self.resume_token = max(beyond, self.resume_token, key=lambda token: token["_data"])
                return None
        event = RawBSONDocument(bson.encode(history.events[self.index]))
        self.index += 1
        self.left_in_batch -= 1
        history.events_sent += 1
        self.resume_token = event["_id"]
        if event.get("operationType") == "invalidate":
            self._alive = False
        return event

    def try_reply(self, max_await: float | None = None) -> list[bytes]:
        events: list[bytes] = []
        event = self.try_next()
        while event is not None:
            events.append(bytes(event.raw))
            more = self.left_in_batch and self.alive and self.index not in self.pauses
            event = self.try_next() if more else None
        return events

    def _skip_other_shards(self) -> None:
        shards = self.history.shards
        while self.shard is not None and self.index < len(shards):
            if shards[self.index] == self.shard:
                return
            self.index += 1
            self.left_in_batch = 0

    def close(self) -> None:
        self.history.open_streams -= 1


def lost_connection() -> PyMongoError:
    return AutoReconnect("connection closed")


def history_lost() -> PyMongoError:
    return OperationFailure(
        "Resume of change stream was not possible", 286, {"errorLabels": ["NonResumable"]}
    )


class SteppingClock:
    """A clock that advances by a step at each reading."""

    def __init__(self, step: float = 0.01) -> None:
        self.time = 0.0
        self.step = step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


class Inbox(ReportInbox):
    """Receives reports without a network."""

    def __init__(self) -> None:
        self.stats_of_tasks: list[ReadStats] = []

    def address(self, tasks: int) -> None:
        return None

    def read(self) -> list[ReadStats]:
        stats_of_tasks, self.stats_of_tasks = self.stats_of_tasks, []
        return stats_of_tasks


def planner(
    history: History,
    *,
    sharded: bool = False,
    inbox: ReportInbox | None = None,
    clock: Callable[[], float] | None = None,
    **limits: Any,
) -> EventPlanner:
    shards = [Shard(str(number)) for number in range(SHARDS)] if sharded else None
    client: Any = SimpleNamespace(
        tokens=lambda start, max_await, clock: EventStream(history.watch, start, clock=clock),
        clocks=lambda: Clocks(history.now, time.time()),
        present=lambda: history.now,
        shards=lambda: shards,
        with_retries=lambda call: call(),
    )
    clock = clock or SteppingClock(0.00001)
    return EventPlanner(client, StreamOptions("mongodb://127.0.0.1", **limits), inbox, clock=clock)
