"""A transport without a socket."""

import asyncio

from shard_client.wire.frame_protocol import FrameStream


class FedTransport(asyncio.Transport):
    """Feeds a FrameStream as an event loop does, without a loop."""

    def __init__(self, stream: FrameStream) -> None:
        super().__init__()
        self.stream = stream
        self.paused = False
        stream.connection_made(self)

    def feed(self, data: bytes) -> int:
        """Deliver ``data`` until the stream pauses; return the number of bytes taken."""
        taken = 0
        while taken < len(data) and not self.paused:
            buffer = self.stream.get_buffer(-1)
            piece = data[taken : taken + len(buffer)]
            assert piece, "event loops treat an empty buffer as an error"
            buffer[: len(piece)] = piece
            self.stream.buffer_updated(len(piece))
            taken += len(piece)
        return taken

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False
