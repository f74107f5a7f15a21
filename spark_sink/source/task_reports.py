"""Reports of tasks to the planner of their batch, by one datagram each.

With them batches have the requested size on a steady backlog. Spark has no way for a task to answer
its planner. A lost or late report only makes the size of the next batch less exact, so nothing
waits for one, and a network that drops them does no harm.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from dataclasses import dataclass

from bson.timestamp import Timestamp

from spark_sink.dataclass_json import from_document, to_document


@dataclass(frozen=True)
class ReadStats:
    """What a task has read: events, their bytes, and the cluster times of the first and the last.

    `ticks` is the highest ordinal in a second that was read to its end, 0 if there is none.
    """

    events: int
    size: int
    first: Timestamp
    last: Timestamp
    ticks: int = 0


_MAX_LENGTH = 512
_MAX_DATAGRAMS = 10_000
Address = tuple[str, int, str]
"""Host and port of a planner's socket, and the word that a report of its tasks begins with."""


class ReportInbox:
    """The planner's datagram socket, on the network interface that leads to the router.

    Reports carry a random word that only the tasks of one batch know; all others are dropped.
    """

    def __init__(self, router: tuple[str, int]) -> None:
        self._word, self._tasks = secrets.token_hex(8), 0
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # without it samples alone give the size of batches
            self._socket = _bound(router)

    def address(self, tasks: int) -> Address | None:
        """Return where so many tasks of the next batch report to; None without a socket."""
        if self._socket is None:
            return None
        self._word, self._tasks = secrets.token_hex(8), tasks
        return *self._socket.getsockname()[:2], self._word

    def read(self) -> list[ReadStats]:
        """Return the reports of the batch, once; none unless all of its tasks have sent one."""
        reports: list[ReadStats] = []
        for _ in range(_MAX_DATAGRAMS):
            if self._socket is None:
                break
            try:
                word, document = json.loads(self._socket.recv(_MAX_LENGTH))
            except OSError:
                break
            except (ValueError, TypeError):
                continue
            if word == self._word:
                reports.append(from_document(ReadStats, document))
        expected, self._tasks = self._tasks, 0
        return reports if len(reports) == expected else []

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def report(stats: ReadStats, address: Address) -> None:
    """Send what a task has read to the planner's address; failures are ignored."""
    host, port, word = address
    line = [word, to_document(stats)]
    with contextlib.suppress(OSError):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.sendto(json.dumps(line).encode(), (host, port))


def _bound(router: tuple[str, int]) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(*router, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing, but chooses the interface
        host = probe.getsockname()[0]
    inbox = socket.socket(family, socket.SOCK_DGRAM)
    inbox.bind((host, 0))
    inbox.setblocking(False)
    return inbox
