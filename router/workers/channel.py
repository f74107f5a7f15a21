"""The message channel between parent and worker, and the handover of connections."""

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
"""The port that accepted a connection."""


class HandedConnection(NamedTuple):
    """A client's connection; ``port`` is DRIVER or FEED, ``connection_id`` unique in the router."""

    port: bytes
    connection_id: int
    connection: socket.socket


class Channel:
    """Ordered messages in both directions: small documents as JSON lines over a socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Return the channel over one end of a socket pair; takes ownership of that end."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_LONGEST_MESSAGE))

    def send(self, **message: Any) -> None:
        """Send a message; it is lost if the other side is gone."""
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None when the other side is gone."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close this side; the other side's ``receive`` then returns None."""
        self._writer.close()


def hand_over(handoff_socket: socket.socket, handed: HandedConnection) -> None:
    """Pass a connection to a worker; the caller closes its own copy.

    Args:
        handoff_socket: the parent's end of the socket pair for connections, in non-blocking mode.
        handed: the connection.

    Raises:
        OSError: the worker is gone, or the socket buffer is full.
    """
    note = _note.pack(handed.port, handed.connection_id)
    socket.send_fds(handoff_socket, [note], [handed.connection.fileno()])


class Arrivals:
    """The worker's end of the socket pair for connections; calls ``taken`` for each connection.

    Args:
        handoff_socket: the worker's end; this object takes ownership.
        taken: called with the connection, in non-blocking mode.
    """

    def __init__(
        self, handoff_socket: socket.socket, taken: Callable[[HandedConnection], None]
    ) -> None:
        self._handoff_socket = handoff_socket
        self._taken = taken
        self._loop = asyncio.get_running_loop()
        handoff_socket.setblocking(False)
        self._loop.add_reader(handoff_socket, self._readable)

    def close(self) -> None:
        """Stop accepting connections from the parent."""
        if self._handoff_socket.fileno() >= 0:
            self._loop.remove_reader(self._handoff_socket)
            self._handoff_socket.close()

    def _readable(self) -> None:
        for _ in range(_HANDED_A_TURN):
            try:
                note, descriptors, _flags, _peer = socket.recv_fds(
                    self._handoff_socket, _note.size, 1
                )
            except BlockingIOError:
                return
            except OSError:
                note, descriptors = b"", []
            if len(note) < _note.size:  # the parent is gone; the channel handles that
                self.close()
                return
            if not descriptors:  # the limit of open descriptors is reached
                continue
            port, connection_id = _note.unpack(note)
            connection = socket.socket(fileno=descriptors[0])
            connection.setblocking(False)
            self._taken(HandedConnection(port, connection_id, connection))
