"""Simulated connections: two ends, each the transport of a protocol, and the bytes in transit."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.network import Network

HOST = "127.0.0.1"


class Link:
    """One connection: two ends, and a pipe in each direction."""

    def __init__(
        self,
        network: "Network",
        loop: asyncio.AbstractEventLoop,
        client: str,
        server: str,
        port: int,
        client_port: int,
    ) -> None:
        self.network = network
        self.loop = loop
        self.client = client
        self.server = server
        self.port = port
        self.client_port = client_port
        self.lost = False
        self.garble: Callable[[bytes], bytes] | None = None
        """Corrupts the bytes that the server sends, for tests of broken peers."""
        self.near = End(self, client, (HOST, client_port), (HOST, port))
        self.far = End(self, server, (HOST, port), (HOST, client_port))
        self.there = Pipe(self, self.near, self.far)
        self.back = Pipe(self, self.far, self.near)
        self.near.out, self.far.out = self.there, self.back

    def __repr__(self) -> str:
        return f"<{self.client}:{self.client_port} to {self.server}:{self.port}>"

    @property
    def held_up(self) -> bool:
        return self.lost or self.network.hangs(self.port)

    def go_on(self) -> None:
        self.there.go_on()
        self.back.go_on()

    def reset(self, later: float) -> None:
        """End both sides, the server's ``later`` seconds after the client's."""
        error = ConnectionResetError(104, "connection reset by peer")
        self.near.lose(error)
        self.loop.call_later(later, self.far.lose, error)

    def ended(self) -> None:
        if self.near.gone and self.far.gone:
            self.network.links.pop(self, None)


class Pipe:
    """The bytes in transit from one end to the other, in order."""

    def __init__(self, link: Link, source: "End", sink: "End") -> None:
        self._link = link
        self._source = source
        self._sink = sink
        self._under_way: deque[tuple[float, bytes | None]] = deque()
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        """The number of bytes in transit, without those that the sink's protocol has not taken."""
        return self._size

    def send(self, data: bytes | None) -> None:
        """Send ``data``; None ends the stream."""
        network, loop = self._link.network, self._link.loop
        due = loop.time() + network.delay(self._link.port)
        if self._under_way:
            due = max(due, self._under_way[-1][0])
        for piece in [None] if data is None else network.pieces(data):
            self._under_way.append((due, piece))
            self._size += len(piece or b"")
            due += network.weather.latency
        self.go_on()

    def go_on(self) -> None:
        """Schedule the delivery of the next piece unless the link is held up."""
        if self._timer is None and self._under_way and not self._link.held_up:
            when = max(self._under_way[0][0], self._link.loop.time())
            self._timer = self._link.loop.call_at(when, self._deliver, context=self._sink.context)

    def drop(self) -> None:
        """Discard the bytes in transit."""
        self._under_way.clear()
        self._size = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arrive_in_part(self, share: float) -> None:
        """Deliver a share of the bytes in transit at once; the rest is lost."""
        data = b"".join(piece for _, piece in self._under_way if piece)
        self.drop()
        kept = data[: int(len(data) * share)]
        if kept and not self._link.held_up and not self._sink.paused and self._sink.made:
            self._link.loop.call_soon(self._sink.feed, kept, context=self._sink.context)

    def _deliver(self) -> None:
        self._timer = None
        now = self._link.loop.time() + 1e-9
        while self._under_way and self._under_way[0][0] <= now:
            if self._link.held_up or self._sink.paused or not self._sink.made:
                break
            _, piece = self._under_way.popleft()
            if piece is None:
                self._sink.end_of_file()
            else:
                self._size -= len(piece)
                garble = self._link.garble
                spoilt = garble is not None and self is self._link.back
                self._sink.feed(garble(piece) if garble and spoilt else piece)
        self._source.check_window()
        if not self._sink.paused:
            self.go_on()


class End(asyncio.Transport):
    """One end of a link, as its protocol's transport."""

    out: Pipe

    def __init__(
        self, link: Link, process: str, own: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        super().__init__({"peername": peer, "sockname": own})
        self.protocol: Any = None
        self.context: Context = copy_context()
        self.process = process
        self.made = False
        self.gone = False
        self.paused = False
        self._link = link
        self._closing = False
        self._full = False
        self._window = link.network.weather.window
        self._rest = b""
        """What the protocol has not taken since it paused."""

    def begin(self, protocol: asyncio.BaseProtocol, context: Context) -> asyncio.BaseProtocol:
        """Call ``connection_made`` at once."""
        self.protocol, self.context = protocol, context
        self.made = True
        protocol.connection_made(self)
        return protocol

    def make(self) -> None:
        """Call ``connection_made`` from the loop."""
        if not self.gone:
            self.made = True
            self.protocol.connection_made(self)
            self._incoming.go_on()

    @property
    def _incoming(self) -> Pipe:
        return self._link.back if self is self._link.near else self._link.there

    # Receiving.

    def feed(self, data: bytes = b"") -> None:
        """Pass bytes to the protocol, buffered or not, as loops do, after those it has not taken.

        They wait while it has paused.
        """
        if self.gone or self._closing:
            return
        data, self._rest = self._rest + data, b""
        if self.paused or not data:
            self._rest = data
            return
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return
        at = 0
        while at < len(data) and not self.gone:
            buffer = memoryview(self.protocol.get_buffer(-1))
            count = min(len(buffer), len(data) - at)
            buffer[:count] = data[at : at + count]
            at += count
            self.protocol.buffer_updated(count)
            if self.paused and at < len(data):
                # The rest stays in the kernel's buffer until the protocol reads again.
                self._rest = data[at:]
                return

    def end_of_file(self) -> None:
        """Handle the end of the peer's data."""
        if self.gone or self._closing:
            return
        if not self.protocol.eof_received():
            self.close()

    # asyncio.Transport

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        if not self.paused:
            return
        self.paused = False
        if self._rest:
            self._link.loop.call_soon(self.feed, context=self.context)
        self._link.loop.call_soon(self._incoming.go_on)

    def get_write_buffer_size(self) -> int:
        return self.out.size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.gone or self._closing or self._link.network.is_dead(self.process) or not data:
            return
        self.out.send(bytes(data))
        self.check_window()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.out.send(None)

    def check_window(self) -> None:
        """Call ``pause_writing`` or ``resume_writing`` when the window fills or empties."""
        if self.gone or not self.made:
            return
        size = self.out.size
        if not self._full and size > self._window:
            self._full = True
            self._link.loop.call_soon(self._ask, "pause_writing", context=self.context)
        elif self._full and size <= self._window // 4:
            self._full = False
            self._link.loop.call_soon(self._ask, "resume_writing", context=self.context)

    def _ask(self, what: str) -> None:
        if not self.gone:
            getattr(self.protocol, what)()

    def is_closing(self) -> bool:
        return self._closing or self.gone

    def close(self) -> None:
        """Send the queued bytes, then end."""
        if self.is_closing():
            return
        self._closing = True
        if not self._link.network.is_dead(self.process):
            self.out.send(None)
        self._finish_when_sent()

    def _finish_when_sent(self) -> None:
        if self.gone:
            return
        if self.out.size > self._window and not self._link.network.is_dead(self.process):
            self._link.loop.call_later(0.01, self._finish_when_sent, context=self.context)
        else:
            self.lose(None)

    def abort(self) -> None:
        """End at once and reset the peer."""
        if self.gone:
            return
        self._closing = True
        self.out.drop()
        other = self._link.far if self is self._link.near else self._link.near
        if not self._link.lost and not self._link.network.is_dead(self.process):
            error = ConnectionResetError(104, "connection reset by peer")
            self._reset_peer(other, error)
        elif not self._link.lost:
            other.lose(None)
        self.lose(None)

    def _reset_peer(self, other: "End", error: Exception) -> None:
        """Reset the peer, later while the link is held up."""
        if self._link.network.hangs(self._link.port):
            self._link.loop.call_later(0.05, self._reset_peer, other, error)
        elif not other.gone:
            delay = self._link.network.delay(self._link.port)
            self._link.loop.call_later(delay, other.lose, error)

    def lose(self, error: Exception | None) -> None:
        """Call ``connection_lost``, once."""
        if self.gone:
            return
        self.gone = self._closing = True
        self._incoming.drop()
        if self.made:
            self._link.loop.call_soon(self.protocol.connection_lost, error, context=self.context)
        self._link.ended()
