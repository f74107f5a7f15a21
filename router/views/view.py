"""What one client reads of a merged stream: all its events, or a part of them."""

from collections.abc import Callable

from router.merge.event_log import EventLog
from router.merge.merged_stream import MergedStream
from router.views.namespace import Namespace
from router.views.traffic import Traffic
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import Watermark


class View:
    """All events of a merged stream, read from its own log.

    ``PartialView`` has those of a namespace that pass a filter, in a log of its own: ``namespace``
    is given if it is narrower than the merged stream, ``traffic`` counts the recent events of the
    merged stream, and those that its parts have got. Where a reader waits, ``on_events`` is called
    when a part has got events, has ended or has failed, and ``waited_for`` is whether the reader
    waits for more of them.
    """

    __slots__ = ("log", "namespace", "on_events", "stream", "traffic", "waited_for")

    is_part = False
    """Whether it is a ``PartialView``."""

    def __init__(
        self,
        stream: MergedStream,
        log: EventLog | None = None,
        namespace: Namespace | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.stream = stream
        self.log = stream.log if log is None else log
        self.namespace = namespace
        self.traffic = traffic
        self.on_events: Callable[[], None] | None = None
        self.waited_for = False

    @property
    def high_water_mark(self) -> Watermark | None:
        """The high water mark of a client that has read everything, or None."""
        return self.stream.high_water_mark

    @property
    def low_watermark(self) -> bytes | None:
        """The sort key up to which all events are in the log once nothing is ready."""
        return self.stream.low_watermark

    @property
    def error(self) -> CommandError | None:
        """The error that ended the stream after the log's end."""
        return self.stream.error

    @property
    def ended(self) -> bool:
        """Whether the stream has ended with an invalidate and nothing is left to append."""
        return self.stream.ended

    @property
    def ending(self) -> bool:
        """Whether the event that ends its namespace has arrived."""
        return False

    @property
    def wider_stream_ended(self) -> bool:
        """Whether the wider stream has ended with an invalidate of its own, but not this one."""
        return False
