"""Errors that state the cause and the remedy first, in few words.

Spark puts a Python traceback before an exception's message by default, and shows the rest of a long
message far below. So every message is cut to MESSAGE_LIMIT characters, and `without_traceback`
hides the tracebacks of expected failures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pymongo.errors import OperationFailure, PyMongoError

MESSAGE_LIMIT = 500

FULL_DISK = ("No space left on device", "Disk quota exceeded")
"""Texts in the messages of a full disk."""

_HISTORY_LOST = 286
_NOT_ALLOWED = 13  # Unauthorized
_REFUSED_OPTION = (
    "the servers refuse an option of the stream, such as 'pipeline' or 'fullDocument': correct it"
)
_CAUSES = {
    280: "the stream cannot be resumed here: the event at the checkpoint is not in it. If its "
    "shard was removed from the cluster, set a job to the present with job seek, or start a query "
    "with a new checkpointLocation. If you have changed pipeline, showExpandedEvents, "
    "cursor.oversize.handling.mode or errors.tolerance, restore it",
    18: "the login is refused: check the user, the password and authSource in option 'uri'",
    _NOT_ALLOWED: "not allowed: the user in option 'uri' needs the privileges find and "
    "changeStream on the watched namespaces",
    **dict.fromkeys((2, 9, 14, 168, 40324), _REFUSED_OPTION),
}
"""Causes and remedies by codes: ChangeStreamFatalError, AuthenticationFailed, Unauthorized; and
BadValue, FailedToParse, TypeMismatch, InvalidPipelineOperator, an unknown stage."""

# Read by pyspark when it reports an exception of a worker (pyspark.util.handle_worker_exception).
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def within_limit(text: str) -> str:
    """Return a text without what exceeds MESSAGE_LIMIT characters."""
    return text if len(text) <= MESSAGE_LIMIT else f"{text[: MESSAGE_LIMIT - 1]}…"


class SourceError(Exception):
    """A failure with a message for the user: the cause and the remedy, then a server's message."""

    def __init__(self, message: str, detail: object = "") -> None:
        super().__init__(within_limit(f"{message} ({_one_line(detail)})" if detail else message))


class OptionError(SourceError, ValueError):
    """An option is missing, unknown or invalid; the message states which and why."""


class StreamError(SourceError):
    """The stream cannot continue; the message states why and the remedy."""


class HistoryLostError(StreamError):
    """The shards' oplogs no longer contain the position from which the stream continues."""


def stream_refused(error: PyMongoError) -> StreamError:
    """Return the error for a stream that the server refuses or ends, with cause and remedy."""
    code = error.code if isinstance(error, OperationFailure) else None
    if code == _HISTORY_LOST:
        return HistoryLostError(
            "history lost: the shards' oplogs no longer contain the stream's position. Set a job "
            "to a later one with job seek, or start it with onHistoryLost=snapshot: both read the "
            "collections again. Start a query with onHistoryLost=snapshot, or with a new "
            "checkpointLocation if it ended within a batch. Make the oplogs larger",
            error,
        )
    if code == _NOT_ALLOWED and "requires authentication" in str(error):
        return StreamError(
            "the server requires a login: write the user and the password into the connection "
            "string (MERGEROUTER_URI, --uri or option 'uri'), as mongodb://user:password@host:port/",
            error,
        )
    rights_of_the_router = code == _NOT_ALLOWED and "the router's user" in str(error)
    if not rights_of_the_router and (cause := _CAUSES.get(code or 0)):
        return StreamError(cause, error)
    return StreamError(f"the server refuses the stream: {_one_line(error)}")


@contextmanager
def without_traceback() -> Iterator[None]:
    """Hide the traceback of a SourceError in Spark's report; other exceptions keep theirs."""
    try:
        yield
    except SourceError as error:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise error.with_traceback(None) from None


def _one_line(detail: object) -> str:
    """Return the detail on one line, without what pymongo appends for developers."""
    text = str(detail).partition(", full error:")[0].partition(", Timeout: ")[0]
    text = re.sub(r"\s*(\x1b\[\d*m)*↳(\x1b\[\d*m)*", ":", text)  # between the causes of delta-rs
    plain = re.sub(r"\[Errno -?\d+\] | ?\(configured timeouts:[^)]*\)", "", text)
    return " ".join(plain.split())
