"""The status of a router of several workers, for the admin port of their parent."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

from router.admin.sources import RouterStatus
from router.commands.process_status import COMMAND
from router.config.log_lines import RECENT
from router.peers.peers import Peer


class WorkersStatus:
    """The status of a router of several workers, as their parent asks for it.

    Args:
        folder: the router's private folder.
        count: the number of workers that there should be.
        ready: returns the numbers of the workers that accept connections.
    """

    def __init__(self, folder: Path, count: int, ready: Callable[[], Collection[int]]) -> None:
        self._peers = {number: Peer(folder, number) for number in range(1, count + 1)}
        self._ready = ready

    async def collect(self, *, details: bool = False) -> RouterStatus:
        """Return the status; a worker that does not answer within two seconds is left out."""
        ready = sorted(self._ready())
        # One worker is enough to check the replica sets.
        commands = [
            {COMMAND: 1, "details": details, "checks": number == ready[0]} for number in ready
        ]
        answers = await asyncio.gather(
            *(
                self._peers[number].ask("admin", command)
                for number, command in zip(ready, commands, strict=True)
            )
        )
        processes = [answer for answer in answers if answer is not None]
        return RouterStatus(processes, len(self._peers), RECENT.failures(50) if details else ())

    def close(self) -> None:
        """Cut the connections to the workers."""
        for peer in self._peers.values():
            peer.close()
