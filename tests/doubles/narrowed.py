"""A narrowed stream and the wider stream that it is a part of."""

from collections.abc import Mapping
from itertools import count

from bson.timestamp import Timestamp

from router.filters.stream_filter import EVERYTHING
from router.request.resume_point import starting_point
from router.request.stream_request import StreamRequest
from router.stream.fan_out import FanOut
from router.stream.log_reader import MAX_BATCH_BYTES, Batch, LogReader
from router.stream.merged_stream import MergedStream
from router.stream.merger import Merger
from router.stream.views import Namespace
from shard_client.remote_cursor.cursor_reply import CursorBatch


class PartOfStream:
    """Reads the stream of ``narrow`` as a part of the wider stream of ``request``."""

    def __init__(
        self,
        request: StreamRequest,
        narrow: StreamRequest,
        shards: Mapping[str, str],
        *,
        start_at: Timestamp,
        topology_from: Timestamp,
    ) -> None:
        self.wide = MergedStream(request, shards, start_at=start_at, topology_from=topology_from)
        self.wide.keep_bytes = 1 << 30
        self.fan_out = FanOut(self.wide, 1 << 30)
        point = starting_point(narrow, start_at, 1)
        name = None if narrow.collection is None else narrow.collection.encode()
        namespace = Namespace(narrow.database.encode(), name)
        self.part = self.fan_out.open(EVERYTHING, point.after, namespace)
        self.log_reader = LogReader(self.part, point)

    @property
    def merger(self) -> Merger:
        return self.wide.merger

    def batch_arrived(self, remote: int, batch: CursorBatch) -> None:
        self.wide.batch_arrived(remote, batch)

    @property
    def ready(self) -> bool:
        self.pass_on()
        while not self.log_reader.is_ready():
            if not self.wide.release():
                return False
            self.pass_on()
        return True

    def pass_on(self) -> None:
        """Give the views all events of the log, a few at a time."""
        clock = count().__next__
        self.fan_out.step(clock, 1)
        while self.fan_out.behind:
            self.fan_out.step(clock, 1)

    def take(self, max_events: int | None, max_bytes: int = MAX_BATCH_BYTES) -> Batch:
        return self.log_reader.take(max_events, max_bytes)
