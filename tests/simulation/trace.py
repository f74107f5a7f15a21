"""What happened in a simulation, line by line in virtual time, and what must not have happened."""

import hashlib
import logging
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from structlog.exceptions import DropEvent

from tests.simulation.loop import PROCESS

_SAID_BY_DESIGN = frozenset({"Unexpected shutdown"})


class Trace:
    """Keeps a digest of all lines, and the lines themselves when ``show`` takes them."""

    def __init__(
        self, clock: Callable[[], float], show: Callable[[str], None] | None = None
    ) -> None:
        self._clock = clock
        self._show = show
        self._digest = hashlib.blake2b(digest_size=8)
        self.problems: list[str] = []

    def note(self, text: str) -> None:
        """Write down something that is the same in each run of the seed."""
        line = f"{self._clock():12.6f} {text}"
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(line)

    def problem(self, text: str) -> None:
        """Write down something that makes the seed fail."""
        self.note(f"PROBLEM {text}")
        self.problems.append(text)

    @property
    def digest(self) -> str:
        """Two runs of one seed have the same."""
        return self._digest.hexdigest()

    def listen_to_logs(self, silenced: Callable[[str], bool]) -> None:
        """Take in what the processes log; their errors are problems.

        ``silenced`` tells of a process whose complaints count no more: one that was killed.
        """

        def take(_logger: Any, level: str, line: MutableMapping[str, Any]) -> Any:
            process = PROCESS.get()
            if level in ("error", "critical", "exception") and not silenced(process):
                self.problem(f"{process} logged {_text(line)}")
            elif self._show is not None:
                self._show(f"{self._clock():12.6f} {process} [{level}] {_text(line)}")
            raise DropEvent

        lowest = logging.DEBUG if self._show is not None else logging.ERROR
        structlog.configure(
            processors=[structlog.processors.format_exc_info, take],
            wrapper_class=structlog.make_filtering_bound_logger(lowest),
            cache_logger_on_first_use=False,
        )


def _text(line: MutableMapping[str, Any]) -> str:
    event = line.pop("event", "")
    values = " ".join(f"{name}={value!s}" for name, value in line.items())
    return f"{event} {values}".rstrip()
