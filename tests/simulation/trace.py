"""The trace of a simulation: one line an occurrence, in virtual time, and its problems."""

import hashlib
import logging
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from structlog.exceptions import DropEvent

from tests.simulation.loop import PROCESS
from tests.simulation.planted import MARK


class Trace:
    """Keeps a digest of all lines and passes the lines to ``show``."""

    def __init__(
        self, clock: Callable[[], float], show: Callable[[str], None] | None = None
    ) -> None:
        self._clock = clock
        self._show = show
        self._digest = hashlib.blake2b(digest_size=8)
        self.problems: list[str] = []

    def note(self, text: str) -> None:
        """Add a line that is the same in each run of the seed."""
        line = f"{self._clock():12.6f} {text}"
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(line)

    def problem(self, text: str) -> None:
        """Add a problem, which makes the seed fail."""
        self.note(f"PROBLEM {text}")
        self.problems.append(text)

    @property
    def digest(self) -> str:
        """The digest of all lines, equal in all runs of one seed."""
        return self._digest.hexdigest()

    def listen_to_logs(self, silenced: Callable[[str], bool]) -> None:
        """Add the processes' log lines to the trace; errors are problems, unless planted.

        Lines of a process for which ``silenced`` returns true, such as a killed one, are dropped.
        """

        def take(_logger: Any, level: str, line: MutableMapping[str, Any]) -> Any:
            process = PROCESS.get()
            severe = level in ("error", "critical", "exception") and not silenced(process)
            text = _text(line) if severe or self._show is not None else ""
            if severe and MARK not in text:
                self.problem(f"{process} logged {text}")
            elif self._show is not None:
                self._show(f"{self._clock():12.6f} {process} [{level}] {text}")
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
