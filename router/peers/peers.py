"""A worker's access to the other workers and to their parent."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import structlog
from bson.int64 import Int64

from router.peers.cursor_ids import new_cursor_id, worker_of
from router.peers.messages import WorkerMessage
from router.upstream.server_link import ServerLink
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address, Connection

log = structlog.get_logger(component="CONTROL")

_CONNECT_TIMEOUT = 2.0
_ANSWER_TIMEOUT = 2.0
_PAUSE_AFTER_TIMEOUT = 10.0
"""Seconds without further requests to a worker that did not answer in time."""

ON_BEHALF_OF: Final = "$onBehalfOf"
"""The field of a command that names the user for whom another worker passes it on."""


def private_address(folder: Path, worker: int) -> str:
    """Return the path of the socket on which a worker answers the other workers."""
    return str(folder / f"{worker}.sock")


class Peer:
    """Another worker, reached over its private socket in the router's private ``folder``."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self._address = (private_address(folder, number), 0)
        self._link = ServerLink(self)
        self._paused_until = 0.0
        self._killing = asyncio.Lock()

    async def connect(self) -> Connection:
        """Open a connection to the worker; raises NetworkError, CommandError."""
        return await Connection.open(
            self._address, timeout=_CONNECT_TIMEOUT, app_name="mergerouter worker"
        )

    async def serves(self, address: Address) -> bool:
        """Return whether a connection to ``address`` is usable: a worker's address is fixed."""
        return address == self._address

    async def ask(self, database: str, command: Mapping[str, Any]) -> dict[str, Any] | None:
        """Run a command on the worker, in bounded time; return None if there is no answer.

        After a timeout, further commands return None immediately for ten seconds. Raises
        CommandError: the worker refuses the command.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._paused_until:
            return None
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                return await self._link.command(database, command)
        except (CommandError, NetworkError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                self._paused_until = loop.time() + _PAUSE_AFTER_TIMEOUT
            log.warning(
                "A worker does not answer as it should",
                asked=self.number,
                command=next(iter(command)),
                error=str(error),
            )
            if isinstance(error, CommandError):
                raise
            return None

    async def kill_cursor(self, cursor_id: int, user: str | None) -> None:
        """Kill a cursor of ``user``, in bounded time; calls at once take turns.

        If the worker does not answer, the cursor ends when it has been idle for too long.
        """
        behalf = {} if user is None else {ON_BEHALF_OF: user}
        command = {"killCursors": "", "cursors": [Int64(cursor_id)], **behalf}
        async with self._killing:
            with suppress(CommandError):  # such as the cursor of another user
                await self.ask("admin", command)

    def close(self) -> None:
        """Cut the connection that ``ask`` uses."""
        self._link.abort()


async def ask_each(
    commands: Mapping[Peer, Mapping[str, Any]], database: str = "admin"
) -> list[dict[str, Any]]:
    """Run a command on each of some workers at once; return the answers received, in order."""

    async def answer(peer: Peer, command: Mapping[str, Any]) -> dict[str, Any] | None:
        with suppress(CommandError):  # which is logged
            return await peer.ask(database, command)
        return None

    answers = await asyncio.gather(*starmap(answer, commands.items()))
    return [each for each in answers if each is not None]


class Peers:
    """The other workers, and the way to their parent (docs/workers.md).

    Args:
        number: this worker's number, from 1.
        mark: the result of ``new_mark``, the same for all workers.
        count: the number of workers.
        folder: as for ``Peer``.
        tell_parent: sends the parent a message.
    """

    def __init__(
        self,
        number: int,
        mark: int,
        count: int,
        folder: Path,
        tell_parent: Callable[[WorkerMessage], None],
    ) -> None:
        self.number = number
        self.count = count
        self.tell_parent = tell_parent
        self._mark = mark
        others = {*range(1, count + 1)} - {self.number}
        self._others = {other: Peer(folder, other) for other in others}

    def new_cursor_id(self) -> int:
        """Return a new id for a cursor of this worker."""
        return new_cursor_id(self._mark, self.number)

    def owner(self, cursor_id: int) -> Peer | None:
        """Return the other worker that may own a cursor; None for our own and the upstream's."""
        number = worker_of(self._mark, cursor_id)
        return self._others.get(number) if number is not None else None

    async def ask_all(self, database: str, command: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
        """Run a command on every other worker; return the answers received."""
        return await ask_each(dict.fromkeys(self._others.values(), command), database)

    def close(self) -> None:
        """Cut this worker's own connections to the other workers."""
        for other in self._others.values():
            other.close()
