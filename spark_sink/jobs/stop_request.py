"""The request to stop a job, by a signal. Import it before Spark, whose import takes seconds."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType


class StopRequest:
    """Whether a stop is requested. From its construction on it handles SIGTERM and SIGINT.

    A second signal exits immediately. So does the first one before `begin`, with status 0: no batch
    is in progress then.
    """

    def __init__(self, *, handles_signals: bool = True) -> None:
        self._requested = threading.Event()
        self.is_orderly = False
        """Whether a stop is requested, and a failure was not the first reason."""
        self._has_signal = False
        self.begun = threading.Event()
        """Whether the jobs have begun: they have their router, their folders and a session."""
        self._numbers = (signal.SIGTERM, signal.SIGINT) if handles_signals else ()
        self._handle()

    def request(self, *, after_failure: bool = False) -> None:
        """Request a stop, as a signal does, or because a job beside this one has failed."""
        if not self.requested:
            self.is_orderly = not after_failure
        self._requested.set()

    def begin(self) -> None:
        """Let the batch in progress commit after a signal.

        It is called in the session: a SparkContext has set a handler of SIGINT that raises.
        """
        self.begun.set()
        self._handle()

    def _handle(self) -> None:
        for number in self._numbers:
            signal.signal(number, self._take)

    @property
    def requested(self) -> bool:
        """Whether a stop is requested."""
        return self._requested.is_set()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._has_signal:
            sys.exit(128 + number)
        self._has_signal = True
        self.request()
        if not self.begun.is_set():
            os.write(2, b"stopped before the first batch\n")  # it may interrupt a print
            sys.exit(0)
