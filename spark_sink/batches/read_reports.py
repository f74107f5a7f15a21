"""Reports of tasks to the planner: one datagram from each task, with what it has read.

Spark has no way for a task to answer its planner. A lost or late report only makes the size of the
next batch less exact, so nothing waits for one, and a network that drops them does no harm.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from dataclasses import astuple

from bson.timestamp import Timestamp

from spark_sink.batches.event_rate import ReadStats

_MAX_LENGTH = 512
_MAX_DATAGRAMS = 10_000


class ReportInbox:
    """The planner's datagram socket, on the network interface that leads to the router.

    Reports carry a random word that only this planner's tasks know; all others are dropped.
    """

    def __init__(self, router: tuple[str, int]) -> None:
        self._word = secrets.token_hex(8)
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # without it samples alone give the size of batches
            self._socket = _bound(router)

    @property
    def address(self) -> tuple[str, int, str] | None:
        """Host, port and word for the tasks; None without a socket."""
        if self._socket is None:
            return None
        host, port = self._socket.getsockname()[:2]
        return host, port, self._word

    def read(self, batch: int) -> list[ReadStats]:
        """Return the reports about a batch; all others are dropped."""
        stats_of_tasks = []
        for _ in range(_MAX_DATAGRAMS):
            try:
                data = b"" if self._socket is None else self._socket.recv(_MAX_LENGTH)
            except OSError:
                break
            if not data:
                break
            stats = _parsed(data, self._word, batch)
            if stats is not None:
                stats_of_tasks.append(stats)
        return stats_of_tasks

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def report(stats: ReadStats, batch: int, address: tuple[str, int, str]) -> None:
    """Send what a task of a batch has read to the planner's address; failures are ignored."""
    host, port, word = address
    events, size, first, last, ticks = astuple(stats)
    line = [word, batch, events, size, first.time, first.inc, last.time, last.inc, ticks]
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
    try:
        inbox.bind((host, 0))
        inbox.setblocking(False)
    except OSError:
        inbox.close()
        raise
    return inbox


def _parsed(data: bytes, word: str, batch: int) -> ReadStats | None:
    try:
        line = json.loads(data)
        sender, about, *numbers = line
        if sender != word or about != batch or not all(type(each) is int for each in numbers):
            return None
        events, size, first, first_tick, last, last_tick, ticks = numbers
        begin, end = Timestamp(first, first_tick), Timestamp(last, last_tick)
    except (ValueError, TypeError):
        return None
    return ReadStats(events, size, begin, end, ticks)
