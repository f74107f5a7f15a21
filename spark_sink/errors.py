"""Errors that tell a user of Spark the cause and the remedy first, and briefly.

Spark puts a Python traceback before an exception's message unless it is told to hide it, and shows
the rest of a long message far below. So every message here is cut to MESSAGE_LIMIT characters, and
`told_briefly` keeps tracebacks of expected failures out of Spark's reports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pymongo.errors import OperationFailure, PyMongoError

MESSAGE_LIMIT = 500

_HISTORY_LOST = 286
_FATAL = 280
_NOT_ALLOWED = (13, 18)  # Unauthorized, AuthenticationFailed

# Read by pyspark when it reports an exception of a worker (pyspark.util.handle_worker_exception).
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


class SourceError(Exception):
    """A failure with a message for the user: the cause and the remedy, then details.

    message: the cause and the remedy; detail: a server's words, which are cut where the message
    would grow beyond MESSAGE_LIMIT characters.
    """

    def __init__(self, message: str, detail: object = "") -> None:
        text = f"{message} ({_one_line(detail)})" if detail else message
        if len(text) > MESSAGE_LIMIT:
            text = text[: MESSAGE_LIMIT - 1] + "…"
        super().__init__(text)


class OptionError(SourceError, ValueError):
    """An option is missing, unknown or cannot be used; the message says which and why."""


class StreamError(SourceError):
    """The stream cannot go on; the message says why, and what can be done."""


class HistoryLostError(StreamError):
    """The shards' oplogs no longer reach back to where the stream should go on."""


def refused_stream(error: PyMongoError) -> StreamError:
    """The cause and the remedy of a stream that the router does not open, or ends."""
    code = error.code if isinstance(error, OperationFailure) else None
    if code == _HISTORY_LOST:
        return HistoryLostError(
            "history lost: the shards' oplogs no longer reach back to this position. Start the "
            "query with onHistoryLost=snapshot, which reads the collections again, or with a new "
            "checkpointLocation, and make the oplogs larger",
            error,
        )
    if code == _FATAL:
        cause = (
            "the stream cannot be resumed here: it must still see the event that the checkpoint "
            "ends with. Restore the pipeline that the checkpoint was written with, or start with "
            "a new checkpointLocation"
        )
    elif code in _NOT_ALLOWED:
        cause = (
            "not allowed: the user in option 'uri' needs the privileges find and changeStream on "
            "what is watched"
        )
    else:
        return StreamError(f"the router refuses the stream: {error}")
    return StreamError(cause, error)


@contextmanager
def told_briefly() -> Iterator[None]:
    """Keep the traceback of a SourceError out of Spark's report; other exceptions keep theirs."""
    try:
        yield
    except SourceError as error:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise error.with_traceback(None) from None


def _one_line(detail: object) -> str:
    """The detail without line breaks, and without what pymongo appends for its developers."""
    text = str(detail).partition(", full error:")[0].partition(", Timeout: ")[0]
    return " ".join(re.sub(r" ?\(configured timeouts:[^)]*\)", "", text).split())
