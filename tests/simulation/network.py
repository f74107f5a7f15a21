"""Simulated sockets: connections of two ends, and the bytes in transit between them.

One seed decides which bytes arrive late, in pieces or never.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, NoReturn

HOST = "127.0.0.1"
_FIRST_PORT = 20_000
_FIRST_CLIENT_PORT = 40_000


@dataclass
class Weather:
    """The network's behaviour; times are in seconds."""

    latency: float = 0.0005
    jitter: float = 0.002
    chop: float = 0.1
    """The probability that written bytes arrive in more than one piece."""
    window: int = 64 * 1024
    """The number of bytes in transit or unread above which the writer has to pause."""
    keepalive: float = 8.0
    """Seconds until both ends notice a silent loss."""


@dataclass(eq=False)
class _Listening:
    """A port, its listener, and its latency."""

    port: int
    process: str
    factory: Callable[[], asyncio.BaseProtocol]
    context: Context


class Network:
    """All links of one simulation; ``chance`` makes the random choices."""

    def __init__(self, chance: Random, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self._chance = chance
        self._listening: dict[int, _Listening] = {}
        self._next_port = _FIRST_PORT
        self._next_client_port = _FIRST_CLIENT_PORT
        self._slow: dict[int, float] = {}
        self._hanging: dict[int, asyncio.Event] = {}
        self._dead: set[str] = set()
        self.links: dict[Link, None] = {}

    # Calls from the loop.

    def listen(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
        process: str,
    ) -> "SimulatedServer":
        """Listen on ``port``, or on any port if 0; raises OSError if it is in use."""
        if not port:
            port = self._next_port
            self._next_port += 1
        if port in self._listening:
            raise OSError(98, f"port {port} is in use")
        listening = _Listening(port, process, factory, copy_context())
        self._listening[port] = listening
        return SimulatedServer(self, loop, listening)

    async def connect(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
        process: str,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect ``process`` to ``port``; raises ConnectionRefusedError without a listener."""
        await asyncio.sleep(2 * self.delay(port))
        while (hanging := self._hanging.get(port)) is not None:
            await hanging.wait()
        listening = self._listening.get(port)
        if listening is None or process in self._dead or listening.process in self._dead:
            raise ConnectionRefusedError(111, f"nobody listens on port {port}")
        self._next_client_port += 1
        link = Link(self, loop, process, listening.process, port, self._next_client_port)
        self.links[link] = None
        accepted = listening.context.run(listening.factory)
        near = link.near.begin(factory(), copy_context())
        link.far.protocol, link.far.context = accepted, listening.context.copy()
        loop.call_soon(link.far.make, context=link.far.context)
        return link.near, near

    def delay(self, port: int) -> float:
        """Draw the delay of bytes to or from a server, in seconds."""
        weather = self.weather
        drawn = weather.latency + weather.jitter * self._chance.random() ** 3
        return drawn * self._slow.get(port, 1.0)

    def pieces(self, data: bytes) -> list[bytes]:
        """Cut written bytes into the pieces that arrive."""
        if len(data) < 2 or self._chance.random() >= self.weather.chop:
            return [data]
        cuts = sorted(
            {self._chance.randrange(1, len(data)) for _ in range(self._chance.choice((1, 1, 3)))}
        )
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    # Faults.

    def slow_down(self, port: int, factor: float) -> None:
        """Make all traffic to and from a server ``factor`` times as slow."""
        self._slow[port] = factor

    def hang(self, port: int) -> None:
        """Hold up all traffic to and from a server, without errors."""
        self._hanging.setdefault(port, asyncio.Event())

    def heal(self, port: int) -> None:
        """End ``hang`` and ``slow_down`` for a server; held-up bytes arrive now."""
        self._slow.pop(port, None)
        hanging = self._hanging.pop(port, None)
        if hanging is not None:
            hanging.set()
            for link in self.links_to(port):
                link.go_on()

    def heal_all(self) -> None:
        """End all faults; silent losses are noticed now."""
        for port in [*self._hanging, *self._slow]:
            self.heal(port)
        for link in list(self.links):
            if link.lost:
                link.reset(0.0)

    def hangs(self, port: int) -> bool:
        """Return whether traffic to ``port`` is held up."""
        return port in self._hanging

    def links_to(self, port: int) -> list["Link"]:
        """Return the links to a server."""
        return [link for link in self.links if link.port == port]

    def links_of(self, process: str) -> list["Link"]:
        """Return the links with an end in ``process``."""
        return [link for link in self.links if process in (link.client, link.server)]

    def cut(self, link: "Link") -> None:
        """Cut a link at any byte: part of the bytes in transit arrive, then both ends are reset."""
        for pipe in (link.there, link.back):
            pipe.arrive_in_part(self._chance.random())
        link.reset(self.delay(link.port))

    def lose(self, link: "Link") -> None:
        """Lose a link silently; both ends notice after the keepalive's time."""
        link.lost = True
        link.loop.call_later(
            self.weather.keepalive * (0.5 + self._chance.random()), link.reset, 0.0
        )

    def kill_process(self, process: str) -> None:
        """End a process: it sends nothing more, and its peers are reset."""
        self._dead.add(process)
        for port, listening in list(self._listening.items()):
            if listening.process == process:
                del self._listening[port]
        for link in self.links_of(process):
            link.reset(self.delay(link.port))

    def is_dead(self, process: str) -> bool:
        """Return whether ``kill_process`` was called for it."""
        return process in self._dead

    def close(self, listening: _Listening) -> None:
        """Stop listening on a port."""
        if self._listening.get(listening.port) is listening:
            del self._listening[listening.port]


class _Socket:
    """The parts of a socket that servers use."""

    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return HOST, self._port


class SimulatedServer(asyncio.AbstractServer):
    """The server that ``create_server`` returns."""

    def __init__(
        self, network: Network, loop: asyncio.AbstractEventLoop, listening: _Listening
    ) -> None:
        self._network = network
        self._loop = loop
        self._listening = listening
        self.sockets: tuple[_Socket, ...] = (_Socket(listening.port),)

    def close(self) -> None:
        self.sockets = ()
        self._network.close(self._listening)

    async def wait_closed(self) -> None:
        """Return at once, since ``close`` closes at once."""

    async def serve_forever(self) -> NoReturn:
        await self._loop.create_future()
        raise AssertionError


class Link:
    """One connection: two ends, and a pipe in each direction."""

    def __init__(
        self,
        network: Network,
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
        """The number of bytes that the sink has not taken."""
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
        if kept and not self._link.held_up and not self._sink.paused:
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

    def feed(self, data: bytes) -> None:
        """Pass bytes to the protocol, buffered or not, as loops do."""
        if self.gone or self._closing:
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
            rest, self._rest = self._rest, b""
            self._link.loop.call_soon(self.feed, rest, context=self.context)
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
