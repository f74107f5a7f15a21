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
        self._is_orderly = True
        self._has_signal = False
        self._has_begun = False
        self._numbers = (signal.SIGTERM, signal.SIGINT) if handles_signals else ()
        self._handle()

    def request(self, *, after_failure: bool = False) -> None:
        """Request a stop, as a signal does, or because a job beside this one has failed."""
        self._is_orderly = self._is_orderly and not (after_failure and not self.requested)
        self._asked.set()

    @property
    def is_orderly(self) -> bool:
        """Whether a stop is requested, and not because of a failure."""
        return self.requested and self._is_orderly

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
        """Whether a stop is requested."""
        return self._asked.is_set()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._has_signal:
            sys.exit(128 + number)
        self._has_signal = True
        self._asked.set()
        if not self._has_begun:
            say("stopped before the first batch")
            sys.exit(0)
