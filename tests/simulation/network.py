"""A simulated network: who listens where, and its faults.

One seed decides which bytes arrive late, in pieces or never.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import NoReturn

from tests.simulation.links import HOST, Link

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
    """The number of bytes in transit above which the writer has to pause."""
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

    def links_to(self, port: int) -> list[Link]:
        """Return the links to a server."""
        return [link for link in self.links if link.port == port]

    def links_of(self, process: str) -> list[Link]:
        """Return the links with an end in ``process``."""
        return [link for link in self.links if process in (link.client, link.server)]

    def cut(self, link: Link) -> None:
        """Cut a link at any byte: part of the bytes in transit arrive, then both ends are reset."""
        for pipe in (link.there, link.back):
            pipe.arrive_in_part(self._chance.random())
        link.reset(self.delay(link.port))

    def lose(self, link: Link) -> None:
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
