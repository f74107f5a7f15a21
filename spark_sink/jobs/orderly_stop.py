"""Runs a job's query until it fails, or until a signal stops it after the batch in progress."""

from __future__ import annotations

import time
from collections.abc import Callable

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.console import say
from spark_sink.errors import StreamError
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.stop_request import StopRequest

STOP_TIMEOUT = 60
"""Seconds in which the batch in progress may commit after a signal."""
_POLL_SECONDS = 1
# How far the clock may be set back, for which time a job writes nothing.
_SET_BACK_SECONDS = 60
_SET_BACK = (
    "the clock of this machine was set back by {:.0f} s, and Spark would start no batch for as "
    "long: start the job again; it continues from its checkpoint"
)
# What a call reports that the JVM still answers while it ends.
_ENDING_JVM = ("SparkContext was shut down", "stopped SparkContext")


def is_stop_by_signal(error: Exception, stop: StopRequest) -> bool:
    """Return whether a call of Spark has failed because a signal has ended the JVM, too.

    A service manager that signals all processes of a job ends the JVM before the batch commits. The
    next start repeats that batch, so this is no failure, unlike a batch that fails meanwhile.
    """
    return stop.is_orderly and _is_end_of_jvm(error)


def _is_end_of_jvm(error: Exception) -> bool:
    """Return whether a call of Spark has failed because its JVM ends, or has ended."""
    if isinstance(error, PySparkException | Py4JJavaError):  # the JVM has answered
        return any(words in str(error) for words in _ENDING_JVM)
    return isinstance(error, ConnectionError | Py4JError)


def run_until_stopped(
    query: StreamingQuery, stop: StopRequest, report: Callable[[StreamingQuery], None]
) -> None:
    """Wait for the end of the query, or for a signal.

    After a signal the batch in progress may commit within STOP_TIMEOUT. `report` is called every
    second, and at the end. Raises StreamError with the cause of a failure; the next start continues
    from the checkpoint. A clock that is set back counts as a failure: Spark starts batches by it,
    and would wait. The end of Spark's JVM raises Spark's own error.
    """
    ahead = _clock_ahead()
    try:
        while not stop.requested:
            ended = query.awaitTermination(_POLL_SECONDS)
            report(query)
            if ended:
                return
            now = _clock_ahead()
            if ahead - now > _SET_BACK_SECONDS:
                query.stop()
                raise StreamError(_SET_BACK.format(ahead - now))
            ahead = max(ahead, now)
        _await_commit(query)
        query.stop()  # at once: the next batch has begun, or is about to
        report(query)
    except StreamingQueryException as error:
        if _is_end_of_jvm(error):
            raise
        raise StreamError(cause_of(error)) from None


def _clock_ahead() -> float:
    """Return the difference between the wall clock and the monotonic clock, in seconds."""
    return time.time() - time.monotonic()


def _await_commit(query: StreamingQuery) -> None:
    """Wait until the batch in progress ends; a new batch id also shows that it was committed.

    Print it if the batch does not end in STOP_TIMEOUT.
    """
    begun = _last_batch(query)
    for _ in range(STOP_TIMEOUT // _POLL_SECONDS):
        if not query.status["isTriggerActive"] or _last_batch(query) != begun:
            return
        if query.awaitTermination(_POLL_SECONDS):
            return
    say(f"the batch in progress has not ended in {STOP_TIMEOUT} s: the next start repeats it")


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])
