"""Where the admin port gets the router's status: this process, or its workers."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from router.commands.node import Node
from router.commands.process_status import COMMAND, process_status
from router.config.log_lines import RECENT
from router.peers.peers import Peer


class RouterStatus(NamedTuple):
    """The statuses of a router's processes that answered, and the number there should be.

    ``failures`` are log lines of the parent of several workers.
    """

    processes: Sequence[Mapping[str, Any]]
    expected: int
    failures: Sequence[str] = ()

    @property
    def checks(self) -> Mapping[str, Mapping[str, Any]]:
        """The latest checks of the cluster's replica sets by target; empty if there are none."""
        return next((each["checks"] for each in self.processes if "checks" in each), {})


class StatusSource(Protocol):
    """Collects the status of the router."""

    async def collect(self, *, details: bool = False) -> RouterStatus:
        """Return the status; with ``details``, also lists of streams, cursors and failures."""
        ...


class OwnStatus:
    """The status of a router that is a single process."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def collect(self, *, details: bool = False) -> RouterStatus:
        """Return the status; with ``details``, also lists of streams, cursors and failures."""
        return RouterStatus([await process_status(self._node, details=details, checks=True)], 1)


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
