"""Runs a query of a job to its end: until it fails, or until a signal asks for its end."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import MESSAGE_LIMIT

# Seconds that the batch under way may take to commit after a signal.
GRACE = 60
_TURN = 1


class EndRequest:
    """Whether SIGTERM or SIGINT has asked for the job's end. A second signal ends it at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def listen(self) -> None:
        """Take both signals from now on, those during Spark's start included."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self._asked.is_set()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            sys.exit(128 + number)
        self._asked.set()


def run_to_end(query: StreamingQuery, end: EndRequest, *, grace: int = GRACE) -> int:
    """Wait for the query's end; return the job's exit status.

    A signal lets the batch under way commit and ends with 0. A failure prints its cause in one line
    and ends with 1; the checkpoint lets the next start go on from there.
    """
    try:
        while not end.asked:
            if query.awaitTermination(_TURN):
                return 0
        _await_commit(query, grace)
        query.stop()
    except StreamingQueryException as error:
        print(f"error: {cause_of(error)}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def cause_of(error: BaseException) -> str:
    """The message that this package gave, without Spark's words around it; at most 500 characters.

    A failure of another kind keeps the beginning of Spark's message.
    """
    text = str(error)
    for name in ("StreamError: ", "OptionError: ", "HistoryLostError: "):
        _, found, message = text.partition(f"spark_sink.errors.{name}")
        if found:
            return message.splitlines()[0][:MESSAGE_LIMIT]
    return text[:MESSAGE_LIMIT]


def _await_commit(query: StreamingQuery, grace: int) -> None:
    """Wait while a batch runs; a query that never pauses has committed one once its id changes."""
    begun = _last_batch(query)
    turns = grace // _TURN
    while query.status["isTriggerActive"] and _last_batch(query) == begun and turns:
        turns -= 1
        if query.awaitTermination(_TURN):
            return


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])
