"""The states of a remote cursor and what may follow each of them, without I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shard_client.remote_cursor.open_cursor import OpenCursor


@dataclass(frozen=True, slots=True)
class CursorState:
    """A state; ``cursor`` is the cursor that is open on a member, which has to be killed."""

    cursor: OpenCursor | None


@dataclass(frozen=True, slots=True)
class Connecting(CursorState):
    """Connects to the member to read from, or to the member of ``cursor`` after a pause."""

    cursor: OpenCursor | None = None


@dataclass(frozen=True, slots=True)
class Opening(CursorState):
    """Awaits the reply to its ``aggregate``."""

    cursor: None = None


@dataclass(frozen=True, slots=True)
class Reading(CursorState):
    """Sends a getMore and awaits its reply; ``ahead``: the next one has been sent already."""

    cursor: OpenCursor
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Paused(CursorState):
    """Has no getMore in flight and no connection; ``since`` is a time on the loop's clock."""

    cursor: OpenCursor
    since: float


@dataclass(frozen=True, slots=True)
class Failing(CursorState):
    """Waits before it connects again after a failure that may be over by then."""

    cursor: None = None


@dataclass(frozen=True, slots=True)
class Closing(CursorState):
    """``close`` awaits the request in flight, then kills ``cursor``, which that may have opened.

    This state remains.
    """

    cursor: OpenCursor | None = None


@dataclass(frozen=True, slots=True)
class Ended(CursorState):
    """Is over: by a failure for good, by an invalidate, or closed by its shard."""

    cursor: None = None


TRANSITIONS: Final[Mapping[type[CursorState], frozenset[type[CursorState]]]] = {
    Connecting: frozenset({Opening, Reading, Ended, Failing, Closing}),
    Opening: frozenset({Reading, Ended, Failing, Closing}),
    Reading: frozenset({Reading, Paused, Ended, Failing, Closing}),
    Paused: frozenset({Connecting, Closing}),
    Failing: frozenset({Connecting, Closing}),
    Closing: frozenset({Closing}),
    Ended: frozenset({Closing, Ended}),
}
"""The states that may follow each state."""


def follow(state: CursorState, following: CursorState) -> CursorState:
    """Return ``following``; raises RuntimeError, for a defect, if it cannot follow ``state``."""
    if type(following) not in TRANSITIONS[type(state)]:
        raise RuntimeError(f"{following} cannot follow {state}")
    return following
