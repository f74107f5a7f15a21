"""Where the admin port gets the router's status."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from router.commands.call import Node
from router.commands.process_status import process_status


class RouterStatus(NamedTuple):
    """The statuses of a router's processes that answered, and the number there should be.

    ``failures`` are log lines of the parent process, if there are several.
    """

    processes: Sequence[Mapping[str, Any]]
    expected: int
    failures: Sequence[str] = ()

    @property
    def server_checks(self) -> Sequence[Mapping[str, Any]]:
        """The latest checks of the servers that the settings name; empty if there are none."""
        return next((each["checks"] for each in self.processes if "checks" in each), ())

    @property
    def checks(self) -> Mapping[str, Mapping[str, Any]]:
        """Those of the cluster's replica sets by target."""
        return {
            check["target"]: check for check in self.server_checks if check["target"] is not None
        }


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
