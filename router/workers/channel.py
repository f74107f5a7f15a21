"""The message channel between parent and worker, which also hands connections over."""

import asyncio
import errno
import pickle
import socket
from collections import deque

import anyio

from router.peers.messages import ServeClient, WorkerMessage

_LONGEST_MESSAGE = 64 * 1024
_FOR_LACK_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 0.1
"""Seconds before a message is sent again that the system had no memory for."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new channel, for parent and worker."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """Ordered messages in both directions, each a packet of a socket pair; it owns one ``end``."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent: deque[bytes] = deque()

    def send(self, message: WorkerMessage) -> None:
        """Send a message without waiting; it is lost if the other side is gone."""
        packet = pickle.dumps(message)
        assert len(packet) <= _LONGEST_MESSAGE
        self._unsent.append(packet)
        if len(self._unsent) == 1:
            self._send_all()

    def _send_all(self) -> None:
        """Send what waits; go on when the other side has read, if its buffer is full."""
        loop = asyncio.get_running_loop()
        try:
            while self._unsent:
                self._end.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            loop.add_writer(self._end, self._send_all)
            return
        except OSError as error:
            if error.errno in _FOR_LACK_OF_MEMORY:
                loop.call_later(_PAUSE, self._send_all)
            else:  # the other side is gone
                self._unsent.clear()
        if self._end.fileno() >= 0:
            loop.remove_writer(self._end)

    def hand_over(self, connection: socket.socket, message: ServeClient) -> None:
        """Send a connection to the worker that shall serve it; the caller closes its own copy.

        Raises OSError: the other side is gone, or does not read its messages.
        """
        if self._unsent:
            raise BlockingIOError("its messages wait")
        socket.send_fds(self._end, [pickle.dumps(message)], [connection.fileno()])

    async def receive(self) -> tuple[WorkerMessage, socket.socket | None] | None:
        """Return the next message, and its connection if it has one that could be opened.

        Returns None when the other side is gone.
        """
        while True:
            await anyio.wait_readable(self._end)
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._end, _LONGEST_MESSAGE, 1)
                break
            except BlockingIOError:
                continue
            except OSError:
                return None
        if not packet:
            return None
        connection = socket.socket(fileno=descriptors[0]) if descriptors else None
        if connection is not None:
            connection.setblocking(False)
        message: WorkerMessage = pickle.loads(packet)  # noqa: S301 (our own other process wrote it)
        return message, connection

    def close(self) -> None:
        """Close this side; the other side's ``receive`` then returns None."""
        if self._end.fileno() >= 0:
            asyncio.get_running_loop().remove_writer(self._end)
        self._end.close()
