"""Runs a job's query until it fails, or until a signal stops it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.console import say
from spark_sink.errors import FULL_DISK, SourceError, StreamError, within_limit
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
# Causes that Java, Python or Spark report in their own words, and the words for an operator.
_REMEDIES = {
    **dict.fromkeys(
        FULL_DISK,
        "a disk is full: free space where the job writes (--out, --checkpoint, spark.local.dir, "
        "by default /tmp), and start it again; it continues from its checkpoint",
    ),
    "Could not parse Master URL": "spark.master in --conf is not an address of Spark: write "
    "local[4], spark://host:7077, yarn or k8s://https://host:port",
    "File name too long": "the name of a collection or of a topic is too long for a folder: leave "
    "its events out (--option collection.exclude.list or pipeline)",
    "Cannot create directory": "the job's folder cannot be made: correct --out, or let the job's "
    "user write there",
    "Read-only file system": "a folder is on a file system that is mounted read-only: mount it "
    "for writing, or correct --out, --checkpoint or spark.local.dir",
    "Permission denied": "a file or folder belongs to another user: let the job's user write to "
    "--out, --checkpoint and spark.local.dir, by default /tmp",
    "Python worker failed to connect back": "a Python process of Spark's did not start in time, "
    "because the machine is too busy: stop other programs or give Spark fewer tasks (--conf "
    "spark.master=local[2]), and start it again; it continues from its checkpoint",
    "Python worker exited unexpectedly": "a Python process of Spark's has ended, most often for "
    "lack of memory: give the hosts more (spark.executor.memoryOverhead), or start the job with "
    "smaller batches (--option maxEventsPerTrigger=50000, or fewer)",
    "No module named": "the Python that Spark starts on each host (PYSPARK_PYTHON) lacks a "
    "package: install pymongo, pyarrow and numpy there",
    "Java heap space": "Spark has too little memory: start the job with --conf "
    "spark.driver.memory=4g, or more if it has that, or with smaller batches (--option "
    "maxEventsPerTrigger=50000, or fewer)",
}
_LOST_FILE = ("No such file", "does not exist", "not found", "NoSuchKey")
"""Words for a file that is gone, and not one that a storage does not return just now."""
_REMEDIES_OF_LOST_FILES = {
    "/current/_changes/": "another start of the job has removed what this one was about to "
    "commit: run one process for each --out; nothing is lost",
    "/keyRange=": "a file of the table current is lost: restore it, or remove "
    "the table and let job rebuild make it again from bronze",
}


# What a call reports that the JVM still answers while it ends.
_ENDING_JVM = ("SparkContext was shut down", "stopped SparkContext")


@contextmanager
def quiet_stop(stop: StopRequest, text: str = "") -> Iterator[None]:
    """Treat the end of Spark's JVM as an orderly stop if one is requested, and print `text`.

    A service manager that signals all processes of a job ends the JVM before the batch commits. The
    next start repeats that batch, so this is not a failure. Other exceptions are raised, also that
    of a batch that fails after the request.
    """
    try:
        yield
    except (ConnectionError, Py4JError, PySparkException) as error:
        if not (stop.is_orderly and _is_end_of_jvm(error)):
            raise
        if text:
            say(text)


def _is_end_of_jvm(error: Exception) -> bool:
    """Return whether a call of Spark has failed because its JVM ends, or has ended."""
    if isinstance(error, PySparkException | Py4JJavaError):  # the JVM has answered
        return any(words in str(error) for words in _ENDING_JVM)
    return True


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
        report(query)
        query.stop()
    except StreamingQueryException as error:
        if _is_end_of_jvm(error):
            raise
        raise StreamError(cause_of(error)) from None


def _clock_ahead() -> float:
    """Return the difference between the wall clock and the monotonic clock, in seconds."""
    return time.time() - time.monotonic()


def cause_of(error: BaseException) -> str:
    """Return the cause of a failure on one line, at most 500 characters.

    It is this package's own message without Spark's text around it. For another kind of failure it
    is the innermost cause that Java or Python reports, after a remedy if there is one.
    """
    text = str(error)
    if isinstance(error, SourceError):
        return text
    if own := re.search(r"\bspark_sink\.[\w.]+Error: (.+)", text):
        return within_limit(own[1])
    cause = _innermost(text)
    is_lost = any(words in cause for words in _LOST_FILE)
    for words, remedy in {**_REMEDIES, **(_REMEDIES_OF_LOST_FILES if is_lost else {})}.items():
        if words in cause:
            return within_limit(f"{remedy} ({cause})")
    return within_limit(cause)


def _innermost(text: str) -> str:
    """Return the last cause in a report of Java or Python, without stack and class names.

    A cause with a message is preferred: the end of a Python process causes a bare EOFException.
    """
    lines = [line for line in text.splitlines() if not re.match(r"\s+(at |\.\.\. |File )", line)]
    caused = [line for line in lines if line.startswith("Caused by: ")]
    caused = [line for line in caused if ": " in line.removeprefix("Caused by: ")] or caused
    thrown = [line for line in lines if re.match(r"(: )?[\w.$]+(Error|Exception): ", line)]
    line = (caused or thrown or lines[:1] or [text])[-1]
    query = r"\[\w+\] Query \[.*?\] terminated with exception: "
    plain = re.sub(rf"^(Caused by: |: )?({query})?([\w.$]*(Error|Exception): )*", "", line)
    return re.sub(r"(Detail: )?\[[Ee]rrno \d+\] ", "", plain)


def _await_commit(query: StreamingQuery) -> None:
    """Wait until the batch in progress ends; a new batch id also shows that it was committed."""
    begun = _last_batch(query)
    polls = STOP_TIMEOUT // _POLL_SECONDS
    while query.status["isTriggerActive"] and _last_batch(query) == begun and polls:
        polls -= 1
        if query.awaitTermination(_POLL_SECONDS):
            return


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])
