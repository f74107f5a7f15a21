"""How failures that may pass are tried again, and how long.

Failures in a row make a round: it ends after a time, or after a number of attempts. After its last
round the query fails; further rounds correspond to the restarts of a connector, which Debezium
counts with `errors.max.retries`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pymongo.errors import ConnectionFailure, CursorNotFound, PyMongoError

from spark_sink import option_values as values
from spark_sink.errors import OptionError, StreamError
from spark_sink.option_names import GetOption

RESUMABLE_LABEL = "ResumableChangeStreamError"

_ATTEMPTS = "connect.max.attempts"
_FIRST_PAUSE = "connect.backoff.initial.delay.ms"
_LONGEST_PAUSE = "connect.backoff.max.delay.ms"
_ROUNDS = "errors.max.retries"
_ROUND_PAUSE = "retriable.restart.connector.wait.ms"
_SELECTION = "mongodb.server.selection.timeout.ms"
PATIENCE_OPTIONS = (_ATTEMPTS, _FIRST_PAUSE, _LONGEST_PAUSE, _ROUNDS, _ROUND_PAUSE, _SELECTION)
"""The names of the options, which are Debezium's."""

_MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Patience:
    """How long a query tries again while requests fail; times are in seconds.

    first_pause, longest_pause: each pause is twice as long as the one before, and shortened at
    random by up to a half; attempts: failures in a row that end a round, None for as many as there
    are in `retry_for`; rounds: how many further rounds follow the first one, None for no limit;
    round_pause: the time between two rounds; selection: how long a router is looked for, None for
    the default, which is shorter where nothing listens at its address.
    """

    first_pause: float = 0.05
    longest_pause: float = 2.0
    attempts: int | None = None
    retry_for: float = 60.0
    rounds: int | None = 0
    round_pause: float = 10.0
    selection: float | None = None

    def __str__(self) -> str:
        """The time or the number of attempts after which the query fails, for messages."""
        round_ = f"{self.retry_for:.0f} s"
        if self.attempts is not None:
            round_ = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return f"{round_}, {self.rounds + 1} times" if self.rounds else round_


DEFAULT_PATIENCE = Patience()


class Retries:
    """The failures of one thing that is tried again and again.

    clock, sleep: for tests.
    """

    def __init__(
        self,
        patience: Patience,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._attempts = 0
        self._rounds = 0

    def reset(self) -> None:
        """There is progress: the next failure is the first one again."""
        self._since = None
        self._attempts = self._rounds = 0

    def go_on(self, error: Exception) -> bool:
        """Whether to try again after a failure; if so, the pause before that is over."""
        patience = self._patience
        now = self._clock()
        if self._since is None:
            self._since = now
        self._attempts += 1
        if not self._round_is_over(now):
            pause = patience.first_pause * 2 ** min(self._attempts - 1, _MOST_DOUBLINGS)
            self._sleep(min(pause, patience.longest_pause) * random.uniform(0.5, 1.0))
            return True
        if patience.rounds is not None and self._rounds >= patience.rounds:
            return False
        self._rounds += 1
        self._since, self._attempts = None, 0
        print(  # noqa: T201
            f"mergerouter: {type(error).__name__}; retry {self._rounds} begins in "
            f"{patience.round_pause:g} s",
            file=sys.stderr,
        )
        self._sleep(patience.round_pause)
        return True

    def _round_is_over(self, now: float) -> bool:
        if self._patience.attempts is not None:
            return self._attempts >= self._patience.attempts
        assert self._since is not None
        return now - self._since >= self._patience.retry_for


def may_pass(error: PyMongoError) -> bool:
    """Whether the same request may go well later."""
    if isinstance(error, CursorNotFound | ConnectionFailure):
        return True
    return error.has_error_label(RESUMABLE_LABEL)


def gave_up(patience: Patience, error: Exception) -> StreamError:
    """The error of a query that has tried again in vain."""
    return StreamError(
        f"gave up after {patience}: the router cannot be reached or does not answer. See whether "
        "it runs at the address in option 'uri', and restart the query",
        error,
    )


def patience_options(given: Mapping[str, str], get: GetOption) -> Patience:
    """The options of this module among those given. Raises OptionError."""
    longest = get(_LONGEST_PAUSE, values.milliseconds, None)
    first = get(_FIRST_PAUSE, values.milliseconds, None)
    if first is None:
        first = min(Patience.first_pause, Patience.longest_pause if longest is None else longest)
    if longest is None:
        longest = max(first, Patience.longest_pause)
    if first > longest:
        raise OptionError(f"option {_FIRST_PAUSE!r} must not be greater than {_LONGEST_PAUSE!r}")
    if _ROUND_PAUSE in given and _ROUNDS not in given:
        raise OptionError(f"option {_ROUND_PAUSE!r} needs option {_ROUNDS!r}")
    rounds: int | None = Patience.rounds
    return Patience(
        first_pause=first,
        longest_pause=longest,
        attempts=get(_ATTEMPTS, values.positive, None),
        rounds=get(_ROUNDS, _rounds, rounds),
        round_pause=get(_ROUND_PAUSE, values.milliseconds, Patience.round_pause),
        selection=get(_SELECTION, values.positive_milliseconds, None),
    )


def _rounds(text: str) -> int | None:
    """Debezium's errors.max.retries: -1 is no limit."""
    if text == "-1":
        return None
    if not text.isdecimal():
        raise ValueError(f"must be -1 for no limit, 0 or a positive whole number, not {text!r}")
    return int(text)
