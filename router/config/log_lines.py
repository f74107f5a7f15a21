"""One JSON object per log line, in the form of mongos's structured log."""

import json
import logging
import math
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog

log = structlog.get_logger()

_SEVERITY = {"critical": "F", "error": "E", "warning": "W", "info": "I", "debug": "D1"}


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

_RECENT_FAILURES = 50
_FAILURES = frozenset("WEF")


class RecentLines:
    """The most recent ``lines`` of the log, for getLog, and ``failures``: warnings and errors.

    ``total`` counts all lines logged, ``unwritten`` the writes that the log's stream refused.
    """

    def __init__(self) -> None:
        self.total = 0
        self.unwritten = 0
        self.lines: deque[str] = deque(maxlen=RECENT_LINES)
        self.failures: deque[str] = deque(maxlen=_RECENT_FAILURES)

    def add(self, line: str, severity: str = "I") -> None:
        """Append ``line`` with its mongos severity; drop the oldest line if the buffer is full."""
        self.total += 1
        self.lines.append(line)
        if severity in _FAILURES:
            self.failures.append(line)


RECENT = RecentLines()


@dataclass(eq=False, slots=True)
class Repeats:
    """Drops lines that repeat, and counts them; a processor of structlog, for warnings.

    A line with the same key within ``interval`` seconds after the last one is dropped; the next one
    has their number in ``repeated``. The key of a warning is its words: numbers do not count, such
    as how long a failure has lasted. At most ``most`` different keys are remembered.
    """

    interval: float = 60.0
    most: int = 256
    clock: Callable[[], float] = time.monotonic
    _seen: OrderedDict[Hashable, tuple[float, int]] = field(default_factory=OrderedDict)

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Return the event, with the number of dropped ones; raises structlog.DropEvent."""
        if method == "warning":
            words = {
                name: value for name, value in event.items() if not isinstance(value, (int, float))
            }
            dropped = self.dropped(repr(words))
            if dropped is None:
                raise structlog.DropEvent
            if dropped:
                event["repeated"] = dropped
        return event

    def dropped(self, key: Hashable) -> int | None:
        """Return how many lines with this key were dropped before this one; None to drop it."""
        now = self.clock()
        logged, dropped = self._seen.get(key, (-math.inf, 0))
        if now < logged + self.interval:
            self._seen[key] = (logged, dropped + 1)
            return None
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > self.most:
            self._seen.popitem(last=False)
        return dropped


class LibraryLog(logging.Handler):
    """Writes what libraries log, asyncio included, as lines of the router's log.

    ``Repeats`` drops those from the same place in their code, with the same place that raised the
    exception, whatever the text is. Only asyncio's lines have tracebacks: they tell of an exception
    that the router's code did not expect.
    """

    def __init__(self, interval: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._repeats = Repeats(interval, clock=clock)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record; called on the thread that made it."""
        kind, error, trace = record.exc_info or (None, None, None)
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        raised_at = None if trace is None else (trace.tb_frame.f_code, trace.tb_lineno)
        dropped = self._repeats.dropped((record.pathname, record.lineno, kind, raised_at))
        if dropped is None:
            return
        message, _, details = record.getMessage().partition("\n")
        fields: dict[str, Any] = {"repeated": dropped, "details": details, "error": error}
        if record.name == "asyncio" and error is not None:
            fields |= {"error": None, "exc_info": record.exc_info}
        fields = {name: value for name, value in fields.items() if value}
        write = log.error if record.levelno >= logging.ERROR else log.warning
        write(message, component="CONTROL", library=record.name, **fields)


MOST_VERBOSE = 5
"""mongos's highest verbosity."""


class LogLevel:
    """The verbosity of this process's log, which setParameter changes at run time."""

    def __init__(self) -> None:
        self.verbosity = 0

    def drop_debug(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Drop a debug line if the verbosity is 0; a processor of structlog."""
        if method == "debug" and not self.verbosity:
            raise structlog.DropEvent
        return event


LEVEL = LogLevel()


class LogOutput:
    """Writes lines to a stream, a processor of structlog; it never fails the code that logs.

    A failed write is counted in ``RECENT.unwritten``; its line stays in ``RECENT``, so that getLog
    and the status page show it. A full disk may recover: later lines are written again. A pipe
    without a reader does not: its descriptor then leads to the null device, so that the interpreter
    can flush its buffer when it ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        """Write an event of ``as_mongos`` as JSON, and return it."""
        line = json.dumps(event, default=str, ensure_ascii=False)
        RECENT.add(line, event["s"])
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            RECENT.unwritten += 1
            if isinstance(error, BrokenPipeError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)
        return line


def configure_logging(
    verbosity: int = 0, *, quiet: bool = False, stream: TextIO | None = None
) -> None:
    """Send every log line of the process to ``stream`` (stdout) as JSON, those of libraries too.

    As ``systemLog.verbosity``, 0 hides debug lines, and 1 or more shows them. With ``quiet``, only
    warnings and errors are logged.
    """
    LEVEL.verbosity = verbosity
    level = logging.WARNING if quiet else logging.DEBUG
    output = sys.stdout if stream is None else stream
    structlog.configure(
        processors=[
            LEVEL.drop_debug,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            Repeats(),
            as_mongos,
            LogOutput(output),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=stream is None,
    )
    root = logging.getLogger()
    if not any(isinstance(handler, LibraryLog) for handler in root.handlers):
        root.addHandler(LibraryLog())
