"""How the planner learns what tasks have read: one datagram from each task.

Spark gives a source no way back from its tasks to its planner. A lost or late report only makes the
next batch's size a rougher estimate, so nothing waits for one, and a network between executors and
driver that lets none pass does no harm.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from dataclasses import astuple

from bson.timestamp import Timestamp

from spark_sink.pace import Passage

_LONGEST = 512
_MOST_AT_ONCE = 10_000


class ReportInbox:
    """The planner's end: a datagram socket on the interface that leads to the router.

    router: host and port, towards which the interface is chosen. Reports carry a random word that
    only this planner's tasks know; others are dropped.
    """

    def __init__(self, router: tuple[str, int]) -> None:
        self._word = secrets.token_hex(8)
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # without it batches are sized by samples alone
            self._socket = _bound(router)

    @property
    def address(self) -> tuple[str, int, str] | None:
        """Host, port and word for the tasks; None where no socket could be had."""
        if self._socket is None:
            return None
        host, port = self._socket.getsockname()[:2]
        return host, port, self._word

    def read(self, batch: int) -> list[Passage]:
        """The reports on that batch that have come; all others that have come are dropped."""
        passages = []
        for _ in range(_MOST_AT_ONCE):
            try:
                data = b"" if self._socket is None else self._socket.recv(_LONGEST)
            except OSError:
                break
            if not data:
                break
            passage = _parsed(data, self._word, batch)
            if passage is not None:
                passages.append(passage)
        return passages

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def report(passage: Passage, batch: int, address: tuple[str, int, str]) -> None:
    """Tell the planner at `address` what a task of the batch has read; failures are ignored."""
    host, port, word = address
    events, size, first, last, ticks = astuple(passage)
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


def _parsed(data: bytes, word: str, batch: int) -> Passage | None:
    try:
        line = json.loads(data)
        sender, about, *numbers = line
        if sender != word or about != batch or not all(type(each) is int for each in numbers):
            return None
        events, size, first, first_tick, last, last_tick, ticks = numbers
        begin, end = Timestamp(first, first_tick), Timestamp(last, last_tick)
    except (ValueError, TypeError):
        return None
    return Passage(events, size, begin, end, ticks)
