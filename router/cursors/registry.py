"""All merged cursors of the process: opened, checked out, killed, timed out."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from router.catalog.cluster import Cluster
from router.cursors.limits import StreamLimits
from router.cursors.merged_cursor import Batch, MergedCursor

if TYPE_CHECKING:
    from router.change_stream.request import StreamRequest


class Owner(NamedTuple):
    """Whose a cursor is: the session's ``lsid.id`` as bytes and the user ``db.name``, if any."""

    lsid: bytes | None = None
    user: str | None = None


class KillResult(NamedTuple):
    """The four lists of a killCursors reply (docs/protocol.md, section 2)."""

    killed: list[int]
    not_found: list[int]
    alive: list[int]
    unknown: list[int]


class CursorRegistry:
    """The merged cursors of a process. ``await close()`` ends them all."""

    def __init__(self, cluster: Cluster, limits: StreamLimits | None = None) -> None:
        raise NotImplementedError

    async def open(self, request: "StreamRequest", owner: Owner) -> tuple[MergedCursor, Batch]:
        """Open a merged cursor for ``request``; its first batch never waits for events.

        Raises CommandError: the shards' opening errors as mongos gives them, or 133 (labelled
        resumable) when shards or the config server stay unreachable.
        """
        raise NotImplementedError

    @asynccontextmanager
    async def checkout(self, cursor_id: int, owner: Owner) -> AsyncIterator[MergedCursor]:
        """Hold the cursor for one getMore.

        Raises CommandError: 43 CursorNotFound, 143 CursorInUse, another's session or user. A cursor
        that has ended, failed or been cancelled inside is gone afterwards.
        """
        raise NotImplementedError
        yield

    def __contains__(self, cursor_id: int) -> bool:
        """Tell whether the cursor is one of ours."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of open merged cursors."""
        raise NotImplementedError

    def kill(self, cursor_ids: Iterable[int], owner: Owner) -> KillResult:
        """Kill cursors by id; the shards' cursors are killed in the background.

        A getMore in flight gets 237 CursorKilled.
        """
        raise NotImplementedError

    def end_sessions(self, lsids: Iterable[bytes]) -> None:
        """Kill the cursors of these sessions."""
        raise NotImplementedError

    def refresh_sessions(self, lsids: Iterable[bytes]) -> None:
        """Start the idle time of these sessions' cursors anew."""
        raise NotImplementedError

    async def close(self) -> None:
        """Kill all cursors and wait, bounded, until their remotes are gone."""
        raise NotImplementedError
