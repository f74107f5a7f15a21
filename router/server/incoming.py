"""The messages of clients: received in turns, and as their size and their logins allow."""

import asyncio
from contextlib import ExitStack
from typing import Final

from router.commands.client import Client
from router.counters.process_counters import Counters
from router.limits.client_limits import ClientLimits
from router.limits.fair_limit import FairLimit
from router.limits.turns import MILLISECOND, Turns
from router.server.client_message import ClientMessage, read_message, uncompressed_size
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import MAX_MESSAGE_SIZE, frame_length

_BEFORE_LOGIN: Final = 1
"""What the turns of clients that have not logged in cost together in an iteration of the loop."""

LARGE: Final = 64 * 1024
"""Bytes of a message beyond which it counts."""

_PORTION = 256 * 1024
"""Bytes of a large message that are received in one turn."""


class PortShares:
    """What all clients of a port share: limits, counters, turns, the room for large messages."""

    def __init__(self, limits: ClientLimits, counters: Counters) -> None:
        self.limits = limits
        self.counters = counters
        self.turns = Turns()
        self.turns_before_login = Turns(_BEFORE_LOGIN)
        self.intake = FairLimit(limits.messages_bytes)


class Incoming:
    """Returns a client's messages one by one, each in its turn; ``release`` each afterwards.

    ``count`` is the number of whole messages so far, ``may_idle`` whether the client has logged in,
    or does not have to. ``idle`` is set while there is no whole message that is not released.
    """

    def __init__(self, stream: FrameStream, client: Client, shared: PortShares) -> None:
        self.count = 0
        self.may_idle = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._stream = stream
        self._client = client
        self._shared = shared
        self._turns = shared.turns_before_login
        self._receives = False
        self._room = ExitStack()
        """What the message holds of the room for large ones."""
        stream.max_frame = shared.limits.message_size_before_login
        self.note_login()

    @property
    def unfinished(self) -> bool:
        """Whether a message has begun and its rest is waited for."""
        return self._receives and self._stream.unfinished > 0

    async def next(self) -> ClientMessage | None:
        """Return the client's next message; None when the connection has ended.

        Raises ProtocolError: the message is malformed or longer than the client's may be.
        """
        self._receives = True
        head = await self._stream.announced()
        if head is None:
            return None
        size = frame_length(head)
        await self._make_room(size + uncompressed_size(head, self._stream.max_frame))
        frame = await self._stream.receive(bytes, portion=_PORTION, turn=self.long_turn)
        self._receives = False
        if frame is None:
            return None
        self.idle.clear()
        self.count += 1
        self._shared.counters.bytes_in += size
        await self._turns.take(1 + size // LARGE)
        return await read_message(frame)

    def release(self) -> None:
        """Give back the room of the message that was answered, or is not going to be."""
        self.idle.set()
        self._room.close()

    def note_login(self) -> None:
        """Lift the limits that apply before the login once a user has logged in."""
        login = self._client.login
        if not self.may_idle and (login is None or login.user is not None):
            self.may_idle = True
            self._turns = self._shared.turns
            self._stream.max_frame = MAX_MESSAGE_SIZE

    async def long_turn(self) -> None:
        """Wait for a turn of a millisecond or more."""
        await self._turns.take(MILLISECOND)

    async def _make_room(self, size: int) -> None:
        """Wait until a message of ``size`` bytes may be held, if it is large."""
        if size <= LARGE:
            return
        user = self._client.user
        name = self._client.host if user is None else str(user)
        receives, self._receives = self._receives, False
        await self._shared.intake.admit(name, size)
        self._receives = receives
        self._room.callback(self._shared.intake.release, name, size)
