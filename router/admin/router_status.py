"""The router's status: where the admin port gets it, and what follows from it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

from router.catalog.shard_list import CONFIG
from router.commands.process_status import process_status
from router.commands.serving_process import ServingProcess
from router.counters.status_sums import sum_statuses


@dataclass(frozen=True)
class RouterStatus:
    """The statuses of a router's processes that answered, and the number there should be.

    ``failures`` are log lines of the parent process, if there are several.
    """

    processes: Sequence[Mapping[str, Any]]
    expected: int
    failures: Sequence[str] = ()

    @cached_property
    def total(self) -> Mapping[str, Any]:
        """The status of all processes together (``sum_statuses``); empty if none answered."""
        return sum_statuses(self.processes) if self.processes else {}

    @property
    def server_checks(self) -> Sequence[Mapping[str, Any]]:
        """The latest checks of the servers that the settings name; empty if there are none."""
        checks: Sequence[Mapping[str, Any]] = self.total.get("checks", ())
        return checks

    @property
    def checks(self) -> Mapping[str, Mapping[str, Any]]:
        """Those of the replica sets by target; ``usable`` is whether clients can be served."""
        return {
            check["target"]: {**check, "usable": check["severity"] in ("ok", "warning")}
            for check in self.server_checks
            if check["target"] is not None
        }

    @property
    def lags(self) -> Mapping[str, float]:
        """The seconds since each replica set's watermark, by target; without those not read."""
        return {
            target: max(0.0, self.total["now"].timestamp() - sums["watermark"].time)
            for target, sums in self.total.get("targets", {}).items()
            if sums["watermark"] is not None
        }

    def history_left(self, place: str) -> Mapping[str, float]:
        """Return the seconds of oplog that each shard has before ``place``; inf if complete.

        Args:
            place: "cursor" or "departed": the farthest behind client with a cursor, or of those
                that left one within a day. Without such a client, nothing is returned.
        """
        earliest = self.total.get("places", {}).get(place)
        return {
            target: inf if check["complete"] else float(earliest.time - check["oldest"].time)
            for target, check in self.checks.items()
            if earliest is not None and check["oldest"] is not None
        }

    def router_problems(self) -> list[str]:
        """Return the problems for which clients cannot be served, without those of shards."""
        problems = []
        if len(self.processes) < self.expected:
            problems.append(f"{len(self.processes)} of {self.expected} workers answer")
        if any(process["quiescing"] for process in self.processes):
            problems.append("the router is shutting down")
        if not self.server_checks:
            problems.append("the servers have not been checked yet")
        return problems + [
            line for line, check in self._failed("error", "fatal") if not _is_shard(check)
        ]

    def shard_problems(self) -> list[str]:
        """Return a line for each shard that cannot be read."""
        return [line for line, check in self._failed("error", "fatal") if _is_shard(check)]

    def warnings(self) -> list[str]:
        """Return the problems in spite of which clients can be served."""
        return [line for line, _ in self._failed("warning")]

    def _failed(self, *severities: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [
            (f"{check['subject']} {check['text']}", check)
            for check in self.server_checks
            if check["severity"] in severities
        ]


def _is_shard(check: Mapping[str, Any]) -> bool:
    return check["target"] not in (None, CONFIG)


Collect = Callable[[bool], Awaitable[RouterStatus]]
"""Returns the router's status; with True, also lists of streams, cursors and failures."""


async def collect_own(process: ServingProcess, details: bool) -> RouterStatus:
    """Return the status of a router that is a single process, as ``Collect``."""
    return RouterStatus([await process_status(process, details=details, checks=True)], 1)
