"""One JSON object per log line, in the form of mongos's structured log."""

import json
import logging
import sys
from collections import deque
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog

_SEVERITY = {
    "critical": "F",
    "exception": "E",
    "error": "E",
    "warning": "W",
    "warn": "W",
    "info": "I",
    "debug": "D1",
}


def as_mongos(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Convert a structlog event to a mongos log line: t, s, c, id, ctx, msg, attr, in this order.

    ``id`` is mongos's number of the line, for lines that mongos has too.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line: dict[str, Any] = {
        "t": {"$date": now},
        "s": _SEVERITY.get(method, "I"),
        "c": event.pop("component", "-"),
        **({"id": event.pop("id")} if "id" in event else {}),
        "ctx": event.pop("ctx", "main"),
        "msg": event.pop("event", ""),
    }
    if event:
        line["attr"] = dict(event)
    return line


RECENT_LINES = 1024
"""Number of lines kept for getLog."""


_RECENT_FAILURES = 100
_FAILURES = frozenset("WEF")


class RecentLines:
    """The most recent log lines, for getLog; ``total`` counts all lines logged."""

    def __init__(self, most: int = RECENT_LINES) -> None:
        self.total = 0
        self.lines: deque[str] = deque(maxlen=most)
        self._failures: deque[str] = deque(maxlen=_RECENT_FAILURES)

    def add(self, line: str, severity: str = "I") -> None:
        """Append ``line`` with its mongos severity; drop the oldest line if the buffer is full."""
        self.total += 1
        self.lines.append(line)
        if severity in _FAILURES:
            self._failures.append(line)

    def failures(self, most: int) -> list[str]:
        """Return up to ``most`` of the latest warnings and errors, oldest first."""
        return list(self._failures)[-most:]


RECENT = RecentLines()


def _render(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    line = json.dumps(event, default=str, ensure_ascii=False)
    RECENT.add(line, event["s"])
    return line


def configure_logging(
    verbosity: int = 0, *, quiet: bool = False, stream: TextIO | None = None
) -> None:
    """Send every log line of the process to ``stream`` (stdout) as JSON.

    Args:
        verbosity: 0 hides debug lines, 1 or more shows them, as ``systemLog.verbosity``.
        quiet: log only warnings and errors, as ``systemLog.quiet``.
        stream: the stream that receives the lines.
    """
    level = logging.WARNING if quiet else (logging.DEBUG if verbosity > 0 else logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            as_mongos,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream or sys.stdout),
        cache_logger_on_first_use=stream is None,
    )
