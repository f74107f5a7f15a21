"""Cut a socket's byte stream into frames, with bounded memory and backpressure both ways.

A BufferedProtocol whose buffer is used again: under uvloop a batch of 1 MB costs an eighth of what
it costs through data_received, most of it spared page faults (bench/micro_receive.py). Source of
the rules: docs/protocol.md, section 1; docs/design.md, section 6.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from shard_client.errors import NetworkError, ProtocolError
from shard_client.wire.frames import HEADER_SIZE, MAX_MESSAGE_SIZE, frame_length

_FIRST_CAPACITY = 8 * 1024
_GROWTH = 256 * 1024
DEFAULT_KEEP = 64 * 1024

T = TypeVar("T")


class FrameStream(asyncio.BufferedProtocol):
    """One side of a connection: whole frames are pulled from it, bytes are written to it.

    ``connected``, if given, is called with the stream when the connection is made. What is
    received and not yet asked for is at most one frame and what came with it: a peer that sends
    more is left waiting, while a peer that goes away is noticed also when nobody receives.
    The buffer grows with the bytes that have arrived, not with what a header claims, and is given
    back after a frame that made it larger than ``keep`` bytes.
    """

    def __init__(
        self,
        connected: Callable[["FrameStream"], None] | None = None,
        *,
        keep: int = DEFAULT_KEEP,
        max_frame: int = MAX_MESSAGE_SIZE,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.lost_error: Exception | None = None
        self._connected = connected
        self._keep = keep
        self._max_frame = max_frame
        self._view = memoryview(bytearray(_FIRST_CAPACITY))
        self._start = 0  # what was received and not yet taken is _view[_start:_end]
        self._end = 0
        self._reader: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def receive(self, take: Callable[[memoryview], T]) -> T | None:
        """Wait for the next whole frame and return what ``take`` makes of it.

        The view that ``take`` gets is valid during the call only (``bytes`` copies it whole).
        Returns None when the connection has ended and all that had arrived has been taken. Raises
        ProtocolError if a frame's length is out of bounds, and what ``take`` raises; the connection
        is to be closed then.
        """
        while True:
            length = self._whole_frame()
            if length is not None:
                start, self._start = self._start, self._start + length
                try:
                    return take(self._view[start : start + length])
                finally:
                    self._frame_taken()
            if self.closed:
                return None
            if self._reader is not None:
                raise RuntimeError("somebody else is receiving from this connection")
            self._resume_reading()
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def write(self, data: bytes) -> None:
        """Queue ``data`` for sending; ``drain`` waits. Raises NetworkError if closed."""
        if self.transport is None or self.closed:
            raise NetworkError("the connection is closed")
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the peer has taken enough that more may be written.

        Returns at once if it may be written now. Raises NetworkError if the connection ends while
        this waits.
        """
        while self._writable is not None:
            await asyncio.shield(self._writable)
            if self.closed:
                raise NetworkError("the connection is closed")

    def abort(self) -> None:
        """Cut the connection at once; what is queued for sending is dropped."""
        if self.transport is not None:
            self.transport.abort()

    async def close(self) -> None:
        """Send what is queued, close, and wait until the connection has ended.

        The caller bounds the wait (the peer may not read) and calls ``abort`` when it is over.
        """
        if self.transport is not None:
            self.transport.close()
            await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended; ``lost_error`` then tells why, None if orderly."""
        await asyncio.shield(self._gone)

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called once the connection has ended."""
        self._gone.add_done_callback(lambda _: callback())

    def shrink(self) -> None:
        """Give back a buffer that has grown, unless something is in it."""
        if self._start == self._end and len(self._view) > _FIRST_CAPACITY:
            self._view = memoryview(bytearray(_FIRST_CAPACITY))
            self._start = self._end = 0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self.transport = cast(asyncio.Transport, transport)
        if self._connected is not None:
            self._connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self.closed = True
        self.lost_error = exc
        self.resume_writing()
        self._wake_reader()
        if not self._gone.done():
            self._gone.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: D102
        if self._end == len(self._view):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102
        self._end += nbytes
        try:
            if self._whole_frame() is None:
                return
        except ProtocolError:
            pass  # receive raises it
        self._wake_reader()
        # Nothing more is read while a frame waits in a full buffer.
        if self._end == len(self._view) and self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:  # noqa: D102
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:  # noqa: D102
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # The buffer.

    def _whole_frame(self) -> int | None:
        """Return the length of the frame at the front, or None if it is not all there yet."""
        available = self._end - self._start
        if available < HEADER_SIZE:
            return None
        length = frame_length(self._view, self._start)
        if length > self._max_frame:
            raise ProtocolError(f"a message of {length} bytes is too long here")
        return length if available >= length else None

    def _frame_taken(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._view) > self._keep:
                self._view = memoryview(bytearray(_FIRST_CAPACITY))

    def _make_room(self) -> None:
        """Make place behind what was received: move it to the front, or into a larger buffer."""
        pending = self._end - self._start
        if self._start:
            self._view[:pending] = self._view[self._start : self._end]
        else:
            length = frame_length(self._view)
            # A little more than the frame, so that the next one, of about its size, fits too.
            capacity = min(length + length // 4, max(_GROWTH, 4 * pending))
            view = memoryview(bytearray(capacity))
            view[:pending] = self._view[:pending]
            self._view = view
        self._start, self._end = 0, pending

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _resume_reading(self) -> None:
        if self._reading_paused and self.transport is not None:
            self._reading_paused = False
            self.transport.resume_reading()
