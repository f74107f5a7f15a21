"""The request to stop a job, by a signal. It is imported before Spark, which takes seconds."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from spark_sink.errors import say


class StopRequest:
    """Whether a stop is requested: by SIGTERM or SIGINT, from the making of the object on.

    A second signal exits immediately. So does the first one before `begin`, with status 0: there is
    no batch to wait for.
    """

    def __init__(self, *, handles_signals: bool = True) -> None:
        self._asked = threading.Event()
        self._has_begun = False
        self._numbers = (signal.SIGTERM, signal.SIGINT) if handles_signals else ()
        self._handle()

    def request(self) -> None:
        """Request a stop, as a signal does."""
        self._asked.set()

    def begin(self) -> None:
        """Let the batch in progress commit after a signal.

        It is called in the session: a SparkContext has set a handler of SIGINT that raises.
        """
        self._has_begun = True
        self._handle()

    def _handle(self) -> None:
        for number in self._numbers:
            signal.signal(number, self._take)

    @property
    def requested(self) -> bool:
        """Whether a signal was received."""
        return self._asked.is_set()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            sys.exit(128 + number)
        self._asked.set()
        if not self._has_begun:
            say("stopped before the first batch")
            sys.exit(0)
