"""Deliberate defects that the simulation must find."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from bson.timestamp import Timestamp

from router.change_stream import remotes
from router.change_stream.actions import Action, OpenRemote
from router.change_stream.log_reader import Batch, LogReader, ReadableStream
from router.change_stream.merged_stream import MergedStream
from router.change_stream.progress_command import progress_command
from router.change_stream.remotes import Remotes
from router.change_stream.resume_point import ResumePoint
from router.merge.merger import Event, Merger
from router.streams import openings
from shard_client.remote_cursor.progress_cursor import ProgressCursor
from shard_client.remote_cursor.remote_cursor import RemoteCursor


@contextmanager
def _gate_by_the_fastest() -> Iterator[None]:
    """Release events up to the largest promise instead of the smallest."""

    def gate(merger: Merger) -> bytes | None:
        return None if merger._silent else merger._promises[-1][0]

    with mock.patch.object(Merger, "gate", property(gate)):
        yield


@contextmanager
def _gate_without_the_config_server() -> Iterator[None]:
    """Leave the config server's remote out of the gate, so that new shards are found too late."""

    def gate(merger: Merger) -> bytes | None:
        promises = [state.promise for state in merger._remotes.values() if not state.topology]
        return None if None in promises else min(promises, default=None)  # type: ignore[type-var]

    with mock.patch.object(Merger, "gate", property(gate)):
        yield


@contextmanager
def _resume_filter_off() -> Iterator[None]:
    """Deliver the events up to the resume token again."""

    def drop_seen(point: ResumePoint, events: list[Event]) -> list[Event]:
        point.passed = True
        return events

    with mock.patch.object(ResumePoint, "drop_seen", drop_seen):
        yield


@contextmanager
def _resume_drops_the_whole_time() -> Iterator[None]:
    """Drop all events of the token's cluster time, those beyond the token included."""
    original = ResumePoint._order

    def order(point: ResumePoint, key: bytes) -> int:
        return min(0, original(point, key))

    with mock.patch.object(ResumePoint, "_order", order):
        yield


@contextmanager
def _new_shards_ignored() -> Iterator[None]:
    """Ignore shards that are added."""
    with mock.patch.object(remotes, "topology_changes", return_value=[]):
        yield


@contextmanager
def _new_shards_too_late() -> Iterator[None]:
    """Open a new shard's remote one second after the time at which it joined."""
    original = Remotes._join

    def join(self: Remotes, change: Any) -> OpenRemote:
        late = replace(change, at=Timestamp(change.at.time + 1, 0))
        return original(self, late)

    with mock.patch.object(Remotes, "_join", join):
        yield


@contextmanager
def _reopened_from_the_start() -> Iterator[None]:
    """Reopen a failed remote at its first start."""
    original = RemoteCursor._open

    async def reopen(cursor: RemoteCursor) -> None:
        cursor._pbrt = None
        await original(cursor)

    with mock.patch.object(RemoteCursor, "_open", reopen):
        yield


@contextmanager
def _mark_ahead_of_events() -> Iterator[None]:
    """Return the shards' promise while events are still buffered."""
    original = LogReader.take

    def take(log_reader: LogReader, *limits: int | None) -> Batch:
        batch = original(log_reader, *limits)
        log_reader._raise_mark()
        return batch._replace(pbrt=log_reader._mark)

    with mock.patch.object(LogReader, "take", take):
        yield


@contextmanager
def _removed_too_early() -> Iterator[None]:
    """Close a removed shard's remote at once, before its last events."""
    original = Remotes.close_removed

    def close_removed(self: Remotes) -> list[Action]:
        with mock.patch.object(self._merger, "promise", return_value=b"g"):  # larger than all keys
            return original(self)

    with mock.patch.object(Remotes, "close_removed", close_removed):
        yield


@contextmanager
def _removed_forgotten() -> Iterator[None]:
    """Open no remotes on shards that were removed after a client fell behind."""
    with mock.patch.object(Remotes, "spans_beyond", return_value=frozenset()):
        yield


@contextmanager
def _probe_believed_at_once() -> Iterator[None]:
    """Accept a progress cursor's promise before the first cursor has returned its events."""
    with mock.patch.object(ProgressCursor, "_has_come", return_value=True):
        yield


@contextmanager
def _probe_sees_less() -> Iterator[None]:
    """Make progress cursors miss events that the first cursors return."""

    def narrowed(database: str, command: Mapping[str, Any], after: bytes) -> Any:
        found, probe = progress_command(database, command, after)
        nothing = {"$match": {"operationType": "nothing"}}
        return found, {**probe, "pipeline": [*probe["pipeline"], nothing]}

    with mock.patch.object(openings, "progress_command", narrowed):
        yield


@contextmanager
def _held_events_move() -> Iterator[None]:
    """Keep what was read but not returned at a move, although the next stream has it too."""
    original = LogReader.attach

    def attach(self: LogReader, stream: ReadableStream) -> None:
        moves = hasattr(self, "_stream")
        kept = (self._held, self._resume) if moves else None
        original(self, stream)
        if kept is not None:
            self._held, self._resume = kept

    with mock.patch.object(LogReader, "attach", attach):
        yield


@contextmanager
def _exceptions_ignored() -> Iterator[None]:
    """Go on after an exception that has interrupted the processing of a block."""

    def fail(stream: MergedStream, error: Exception) -> None:
        """Leave the stream as it is."""

    with mock.patch.object(MergedStream, "fail", fail, create=True):
        yield


SABOTAGE: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "gate": _gate_by_the_fastest,
    "gate-config": _gate_without_the_config_server,
    "resume": _resume_filter_off,
    "resume-time": _resume_drops_the_whole_time,
    "new-shard": _new_shards_ignored,
    "new-shard-late": _new_shards_too_late,
    "reopen": _reopened_from_the_start,
    "moved-twice": _held_events_move,
    "exception": _exceptions_ignored,
    "mark": _mark_ahead_of_events,
    "removed": _removed_too_early,
    "removed-behind": _removed_forgotten,
    "probe": _probe_believed_at_once,
    "probe-filter": _probe_sees_less,
}
"""The defects by their names for ``--sabotage``."""
