"""The message channel between parent and worker, and the handover of connections."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from struct import Struct
from typing import Any, NamedTuple, Self

import anyio

_LONGEST_MESSAGE = 1024 * 1024

_note = Struct("<cq")

DRIVER, FEED = b"d", b"f"
"""The port that accepted a connection."""


class HandedConnection(NamedTuple):
    """A client's connection; ``kind`` is DRIVER or FEED, ``connection_id`` unique in the router."""

    kind: bytes
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
        if not self._writer.is_closing():  # uvloop raises RuntimeError for a closed transport
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
    note = _note.pack(handed.kind, handed.connection_id)
    socket.send_fds(handoff_socket, [note], [handed.connection.fileno()])


async def arrivals(handoff_socket: socket.socket) -> AsyncIterator[HandedConnection]:
    """Yield the connections that the parent hands over, each without blocking, until it is gone.

    Args:
        handoff_socket: the worker's end of the socket pair for connections, in non-blocking mode.
    """
    while True:
        await anyio.wait_readable(handoff_socket)
        note, descriptors, _flags, _peer = socket.recv_fds(handoff_socket, _note.size, 1)
        if not note:  # the parent is gone; the channel handles that
            return
        if not descriptors:  # the limit of open descriptors is reached
            continue
        kind, connection_id = _note.unpack(note)
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        yield HandedConnection(kind, connection_id, connection)
