"""A watching client: an application on a driver, which must get every event exactly once."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bson.timestamp import Timestamp

from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address
from tests.simulation.driver import Batch, DriverCursor, Token, ask, is_resumable
from tests.simulation.planted import MARK
from tests.simulation.segments import Segment
from tests.simulation.trace import Trace

_CURSOR_KILLED = 237
_INVALID_RESUME_TOKEN = 260
_PATIENCE = 90.0
"""Seconds without a working cursor after which an application gives up."""


@dataclass(frozen=True)
class Watch:
    """The stream that a client watches, and its batch sizes and waits."""

    database: str
    target: str | int
    options: dict[str, Any] = field(default_factory=dict)
    pipeline: tuple[dict[str, Any], ...] = ()
    batch_size: int | None = None
    max_time_ms: int = 300

    @property
    def stage(self) -> dict[str, Any]:
        cluster = {"allChangesForCluster": True} if self.database == "admin" else {}
        return {**cluster, **self.options}

    def __str__(self) -> str:
        return f"{self.database}.{self.target} {self.options} {list(self.pipeline)}"


@dataclass(frozen=True)
class Mood:
    """The probabilities that an application leaves, pauses, or asks for one event at a getMore.

    ``torn`` is the probability that it leaves after a reply that ends at an event: more was ready.
    """

    restless: float = 0.0
    torn: float = 0.0
    slow: float = 0.0
    sips: float = 0.0
    longest_pause: float = 8.0


class Watcher:
    """Reads one stream to the end of the simulation, through all faults."""

    def __init__(
        self,
        name: str,
        watch: Watch,
        router: Address,
        chance: Random,
        trace: Trace,
        *,
        positions: Callable[[], dict[str, int]],
        mood: Mood,
        start_at: Timestamp | None = None,
    ) -> None:
        self.name = name
        self.watch = watch
        self.segments: list[Segment] = []
        self.seen: list[Token] = []
        self.done = False
        self._router = router
        self._chance = chance
        self._trace = trace
        self._positions = positions
        self._mood = mood
        self._start_at = start_at
        self._token: Token | None = None
        self._mark = ""
        self._after_invalidate = False
        self._until: str | None = None
        self._lsid = chance.randbytes(16)
        self._works = False
        self._opening = False

    @property
    def key(self) -> str:
        """The sort key that the client would now resume from."""
        return self._token["_data"] if self._token else ""

    @property
    def progress(self) -> str:
        """The sort key up to which the application has all events.

        It is far ahead until the application opens a stream from now, and that start afterwards.
        """
        return self.key or ("" if self._start_at or self._opening else "9")

    def finish_at(self, key: str) -> None:
        """End once all events up to ``key`` have arrived."""
        self._until = key

    async def run(self) -> None:
        """Watch until all events have arrived; add problems to the trace."""
        loop = asyncio.get_running_loop()
        worked_at = loop.time()
        while not self.done:
            cursor = DriverCursor(self._router, self.watch.database, self.watch.target, self._lsid)
            self._works = False
            try:
                await self._read(cursor)
            except (CommandError, NetworkError) as error:
                code = getattr(error, "code", "")
                self._trace.note(f"{self.name} {type(error).__name__} {code} {error}")
                refused = code == _INVALID_RESUME_TOKEN and bool(self.segments)
                if refused and self.watch.pipeline and not self._after_invalidate:
                    # The stream ended there, which is checked; its invalidate was filtered out.
                    self.segments[-1].closed = True
                    self._after_invalidate = True
                elif MARK in str(error) and not self._works:
                    pass  # an application tries an opening again
                elif not is_resumable(error) or "broke its rules" in str(error):
                    self._trace.problem(f"{self.name} ({self.watch}) got {code} {error}")
                    if MARK not in str(error):
                        return
            finally:
                cursor.vanish()
            if self._works:
                worked_at = loop.time()
            if loop.time() - worked_at > _PATIENCE:
                self._trace.problem(f"{self.name} ({self.watch}) has had no cursor for a long time")
                return
            await asyncio.sleep(0.02 + self._chance.random() * 0.2)

    async def _read(self, cursor: DriverCursor) -> None:
        """Open a cursor at the end of the last one and read it."""
        stage = self.watch.stage
        if self._token is None and self._start_at is not None:
            stage["startAtOperationTime"] = self._start_at
        if self._token is not None:
            stage["startAfter" if self._after_invalidate else "resumeAfter"] = self._token
        self._trace.note(f"{self.name} opens {self.watch.database} after {self.key}")
        there = self._positions()
        self._opening = True
        try:
            batch = await cursor.open(stage, list(self.watch.pipeline), self.watch.batch_size)
        finally:
            self._opening = False
        segment = Segment(self.key, first_mark=batch.pbrt["_data"])
        if self._token is None and self._start_at is not None:
            segment.start = f"82{self._start_at.time:08X}{self._start_at.inc:08X}"
        elif self._token is None:
            segment.start = segment.first_mark
            # The opening cannot include shards that are added meanwhile.
            now = self._positions()
            segment.positions = {name: now[name] for name in there.keys() & now.keys()}
        if self.segments:
            self.segments[-1].end = self.key
        self.segments.append(segment)
        self._take(segment, batch)
        while not self.done:
            if not batch.cursor_id:
                segment.closed = True
                if not self._after_invalidate and not self.watch.pipeline:
                    self._trace.problem(f"{self.name} was closed without an invalidate")
                # It may have been filtered out. Drivers use startAfter until the next event.
                self._after_invalidate = True
                return
            if self._chance.random() < self._mood.slow:
                await asyncio.sleep(self._chance.random() ** 4 * self._mood.longest_pause)
            at_event = bool(batch.events) and batch.events[-1]["_id"] == batch.pbrt
            torn = self._mood.torn if at_event and self._until is None else 0.0
            leaves = max(self._mood.restless, torn)
            if self._chance.random() < leaves:
                await self._leave(cursor)
                return
            sips = self._mood.sips > 0 and self._chance.random() < self._mood.sips
            size = 1 if sips else self.watch.batch_size
            batch = await cursor.more(size, self.watch.max_time_ms)
            self._take(segment, batch)
        await cursor.close()

    async def _leave(self, cursor: DriverCursor) -> None:
        """Leave and return: with or without closing, possibly during a getMore."""
        way = self._chance.randrange(5)
        self._trace.note(f"{self.name} leaves, way {way}")
        if way == 0:
            await cursor.close()
        elif way == 1:
            try:
                async with asyncio.timeout(self._chance.random() * 0.05):
                    # Its reply is lost with the connection.
                    await cursor.more(self.watch.batch_size, self.watch.max_time_ms)
            except TimeoutError:
                pass
        elif way in (2, 3):
            await self._interrupt(cursor, end_session=way == 3)

    async def _interrupt(self, cursor: DriverCursor, *, end_session: bool) -> None:
        """End the cursor or its session over another connection while a getMore waits."""
        waiting = asyncio.create_task(cursor.more(self.watch.batch_size, self.watch.max_time_ms))
        await asyncio.sleep(self._chance.random() * 0.05)
        try:
            database, command = cursor.ending(end_session=end_session)
            await ask(self._router, command, database)
        finally:
            await asyncio.wait({waiting})
            error = waiting.exception()
        if isinstance(error, CommandError) and error.code != _CURSOR_KILLED:
            raise error

    def _take(self, segment: Segment, batch: Batch) -> None:
        """Process a batch as drivers do, and check it against the earlier watermarks."""
        self._works = True
        mark = batch.pbrt["_data"]
        for event in batch.events:
            key = event["_id"]["_data"]
            # Only DDL events share a token, which several replies may have (docs/protocol.md).
            again = bool(segment.events) and segment.events[-1]["_id"]["_data"] == key
            if key < self._mark or (key == self._mark and not again):
                self._trace.problem(f"{self.name}: {key} comes after the watermark {self._mark}")
            if key > mark:
                self._trace.problem(f"{self.name}: {key} lies above its batch's token {mark}")
            segment.events.append(event)
            self._after_invalidate = event["operationType"] == "invalidate"
            self.seen.append(event["_id"])
        if mark < self._mark:
            self._trace.problem(f"{self.name}: PBRT went back from {self._mark} to {mark}")
        segment.replies.append((mark, len(segment.events)))
        if batch.events:
            self._trace.note(f"{self.name} got {len(batch.events)} events to {mark}")
        if not self._after_invalidate and mark > self._mark:
            self.seen.append(batch.pbrt)
        self._mark = max(mark, self._mark)
        self._token = batch.pbrt
        segment.end = mark
        self.done = self._until is not None and mark >= self._until
