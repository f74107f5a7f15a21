"""What the parent and a worker say to each other, and the connections that are handed over."""

import asyncio
import json
import socket
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, Self

_LONGEST_MESSAGE = 1024 * 1024
_HANDED_A_TURN = 64

_note = Struct("<cq")

DRIVER, FEED = b"d", b"f"
"""Whose port a connection came in at."""


class HandedConnection(NamedTuple):
    """A client's connection: ``port`` is DRIVER or FEED, ``connection_id`` unique in the router."""

    port: bytes
    connection_id: int
    connection: socket.socket


class Channel:
    """Messages both ways, in order: small documents as lines of JSON over a socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Return the channel over one end of a socket pair, which it owns from now on."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_LONGEST_MESSAGE))

    def say(self, **message: Any) -> None:
        """Send a message; one to a side that is gone is lost."""
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def hear(self) -> dict[str, Any] | None:
        """Return the next message, None when the other side is gone."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close this side; the other one hears of it."""
        self._writer.close()


def hand_over(way: socket.socket, handed: HandedConnection) -> None:
    """Give a connection to a worker; the caller closes its own copy.

    Args:
        way: the parent's end of the pair for connections, which does not block.
        handed: the connection.

    Raises:
        OSError: the worker is gone, or takes none at the moment.
    """
    note = _note.pack(handed.port, handed.connection_id)
    socket.send_fds(way, [note], [handed.connection.fileno()])


class Arrivals:
    """The worker's end of the pair for connections: calls ``taken`` with each that arrives.

    Args:
        way: the worker's end, owned from now on.
        taken: gets the connection, which does not block.
    """

    def __init__(self, way: socket.socket, taken: Callable[[HandedConnection], None]) -> None:
        self._way = way
        self._taken = taken
        self._loop = asyncio.get_running_loop()
        way.setblocking(False)
        self._loop.add_reader(way, self._readable)

    def close(self) -> None:
        """Take no more."""
        if self._way.fileno() >= 0:
            self._loop.remove_reader(self._way)
            self._way.close()

    def _readable(self) -> None:
        for _ in range(_HANDED_A_TURN):
            try:
                note, descriptors, _flags, _peer = socket.recv_fds(self._way, _note.size, 1)
            except BlockingIOError:
                return
            except OSError:
                note, descriptors = b"", []
            if len(note) < _note.size:  # the parent is gone; the channel tells what to do
                self.close()
                return
            if not descriptors:  # more are open than the system allows
                continue
            port, connection_id = _note.unpack(note)
            connection = socket.socket(fileno=descriptors[0])
            connection.setblocking(False)
            self._taken(HandedConnection(port, connection_id, connection))
