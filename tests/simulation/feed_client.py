"""A client of the feed that reconnects after its last line whenever the feed ends."""

import asyncio
import json
from random import Random
from typing import Any

from bson import json_util
from bson.timestamp import Timestamp

from shard_client.errors import RESUMABLE_LABEL
from shard_client.wire.connection import Address
from tests.simulation.segments import Segment
from tests.simulation.trace import Trace
from tests.simulation.watcher import Watch

_CURSOR_NOT_FOUND = 43
_LONGEST_LINE = 1 << 20


class FeedClient:
    """Reads the feed from ``start_at`` on, through all failures, until it is cancelled."""

    def __init__(
        self,
        watch: Watch,
        feed: Address,
        start_at: Timestamp,
        chance: Random,
        trace: Trace,
        slow: float,
    ) -> None:
        self.watch = watch
        self.segments: list[Segment] = []
        self._feed = feed
        self._start_at = start_at
        self._chance = chance
        self._trace = trace
        self._slow = slow
        self._token: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """The sort key of the last event received, or of the start before the first."""
        if self._token is not None:
            return str(self._token["_data"])
        return f"82{self._start_at.time:08X}{self._start_at.inc:08X}"

    progress = key

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except OSError as error:
                self._trace.note(f"feed: {error}")
            await asyncio.sleep(0.02 + self._chance.random() * 0.2)

    def _request(self) -> bytes:
        wanted: dict[str, Any] = dict(self.watch.options)
        if self.watch.database != "admin":
            wanted["database"] = self.watch.database
            if isinstance(self.watch.target, str):
                wanted["collection"] = self.watch.target
        wanted["pipeline"] = list(self.watch.pipeline)
        if self._token is None:
            wanted["startAtOperationTime"] = self._start_at
        else:
            wanted["startAfter"] = self._token
        wanted["json"] = "canonical"
        return json_util.dumps(wanted).encode() + b"\n"

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection(*self._feed, limit=_LONGEST_LINE)
        segment = Segment(self.key)
        if self.segments:
            self.segments[-1].end = self.key
        self.segments.append(segment)
        self._trace.note(f"feed opens after {self.key}")
        try:
            writer.write(self._request())
            while (line := await reader.readline()).endswith(b"\n"):
                self._take(segment, line)
                if self._chance.random() < self._slow:
                    await asyncio.sleep(self._chance.random() ** 3 * 3)
        finally:
            writer.transport.abort()

    def _take(self, segment: Segment, line: bytes) -> None:
        event = json_util.loads(line)
        error = event.get("error")
        if error is None:
            segment.events.append(event)
            self._token = event["_id"]
            self._trace.note(f"feed got {self.key}")
            return
        labels = error.get("errorLabels", ())
        self._trace.note(f"feed was told {json.dumps(error)}")
        if RESUMABLE_LABEL not in labels and error["code"] != _CURSOR_NOT_FOUND:
            self._trace.problem(f"the feed ({self.watch}) was told {error}")
