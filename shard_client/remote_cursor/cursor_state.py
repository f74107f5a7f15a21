"""The states of a remote cursor and what may follow each of them, without I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from shard_client.remote_cursor.open_cursor import OpenCursor


@dataclass(frozen=True, slots=True)
class CursorState:
    """A state; ``cursor`` is the cursor that is open on a member, which has to be killed."""

    shown: ClassVar[str]
    """The state's name on the status page."""
    cursor: OpenCursor | None


@dataclass(frozen=True, slots=True)
class Connecting(CursorState):
    """Connects to the member to read from, or to the member of ``cursor`` after a pause."""

    shown = "opening"
    cursor: OpenCursor | None = None


@dataclass(frozen=True, slots=True)
class Opening(CursorState):
    """Awaits the reply to its ``aggregate``."""

    shown = "opening"
    cursor: None = None


@dataclass(frozen=True, slots=True)
class Reading(CursorState):
    """Sends a getMore and awaits its reply; ``ahead``: the next one has been sent already."""

    shown = "reading"
    cursor: OpenCursor
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Paused(CursorState):
    """Has no getMore in flight and no connection; ``since`` is a time on the loop's clock."""

    shown = "paused"
    cursor: OpenCursor
    since: float


@dataclass(frozen=True, slots=True)
class Failing(CursorState):
    """Waits before it connects again after a failure that may be over by then."""

    shown = "failing"
    cursor: None = None


@dataclass(frozen=True, slots=True)
class Closing(CursorState):
    """``close`` awaits the request in flight, then kills ``cursor``, which that may have opened."""

    shown = "ended"
    cursor: OpenCursor | None = None


@dataclass(frozen=True, slots=True)
class Ended(CursorState):
    """Is over: by a failure for good, by an invalidate, or closed by its shard or ``close``."""

    shown = "ended"
    cursor: None = None


TRANSITIONS: Final[Mapping[type[CursorState], frozenset[type[CursorState]]]] = {
    Connecting: frozenset({Opening, Reading, Failing, Closing}),
    Opening: frozenset({Reading, Ended, Failing, Closing}),
    Reading: frozenset({Reading, Paused, Ended, Failing, Closing}),
    Paused: frozenset({Connecting, Closing}),
    Failing: frozenset({Connecting, Closing}),
    Closing: frozenset({Closing, Ended}),
    Ended: frozenset({Closing, Ended}),
}
"""The states that may follow each state."""


def follow(state: CursorState, following: CursorState) -> CursorState:
    """Return ``following``; raises RuntimeError, for a defect, if it cannot follow ``state``."""
    if type(following) not in TRANSITIONS[type(state)]:
        raise RuntimeError(f"{following} cannot follow {state}")
    return following
