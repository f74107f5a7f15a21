"""Deliberate defects that the simulation must find."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from bson.timestamp import Timestamp

from router.request.shard_commands import progress_command
from router.stream.merge.merged_stream import MergedStream
from router.stream.merge.merger import Merger
from router.stream.merge.shard_membership import Membership
from router.stream.readers.log_reader import Batch, LogReader
from router.stream.readers.resume_point import ResumePoint
from router.stream.readers.views import View
from router.stream.remotes import open_remotes
from shard_client.remote_cursor.cursor_reply import CursorBatch, Event
from shard_client.remote_cursor.progress_cursor import ProgressCursor
from shard_client.remote_cursor.remote_cursor import RemoteCursor


def _change(target: object, **attributes: object) -> None:
    """Set attributes that ``target`` has: one that it no longer has would change nothing."""
    for name, value in attributes.items():
        assert hasattr(target, name), name
        setattr(target, name, value)


@contextmanager
def _low_watermark_of_the_fastest() -> Iterator[None]:
    """Release events up to the largest watermark instead of the smallest."""

    def low_watermark(merger: Merger) -> bytes:
        keys = [key for key, _ in merger._watermarks] or [b""]
        return keys[0] and keys[-1]

    with mock.patch.object(Merger, "low_watermark", property(low_watermark)):
        yield


@contextmanager
def _low_watermark_without_the_config_server() -> Iterator[None]:
    """Leave the config server out of the low watermark, so that new shards are found too late."""

    def low_watermark(merger: Merger) -> bytes:
        shards = (each for each in merger.remotes.values() if not each.topology)
        return min((each.watermark for each in shards), default=b"")

    with mock.patch.object(Merger, "low_watermark", property(low_watermark)):
        yield


@contextmanager
def _resume_filter_off() -> Iterator[None]:
    """Deliver the events up to the resume token again."""

    def drop_seen(point: ResumePoint, events: list[Event], **_: bool) -> list[Event]:
        _change(point, passed=True)
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
    with mock.patch.object(Membership, "change"):
        yield


@contextmanager
def _new_shards_too_late() -> Iterator[None]:
    """Open a new shard's remote one second after the time at which it joined."""
    original = Membership._join

    def join(self: Membership, shard: str, host: str, at: Timestamp) -> None:
        original(self, shard, host, Timestamp(at.time + 1, 0))

    with mock.patch.object(Membership, "_join", join):
        yield


@contextmanager
def _reopened_from_the_start() -> Iterator[None]:
    """Reopen a failed remote at its first start."""
    original = RemoteCursor._open

    async def reopen(cursor: RemoteCursor) -> CursorBatch | None:
        _change(cursor, _watermark=None)
        return await original(cursor)

    with mock.patch.object(RemoteCursor, "_open", reopen):
        yield


@contextmanager
def _mark_ahead_of_events() -> Iterator[None]:
    """Return the shards' watermark while events are still buffered."""
    original = LogReader.take

    def take(log_reader: LogReader, *limits: int | None) -> Batch:
        batch = original(log_reader, *limits)
        log_reader._raise_mark()
        return batch._replace(pbrt=log_reader.high_water_mark)

    with mock.patch.object(LogReader, "take", take):
        yield


@contextmanager
def _removed_too_early() -> Iterator[None]:
    """Close a removed shard's remote at once, before its last events."""

    def retire_removed(self: Membership) -> None:
        leaving = sorted(self.leaving)
        self.leaving.clear()
        for number in leaving:
            removed_at = self._merger.remotes[number].removed_at or b""
            self._merger.retire_remote(number, before=removed_at)
        self.changes += len(leaving)

    with mock.patch.object(Membership, "retire_removed", retire_removed):
        yield


@contextmanager
def _removed_forgotten() -> Iterator[None]:
    """Open no remotes on shards that were removed after a client fell behind."""
    with mock.patch.object(Membership, "spans_beyond", return_value=frozenset()):
        yield


@contextmanager
def _probe_believed_at_once() -> Iterator[None]:
    """Accept a progress cursor's watermark before the first cursor has returned its events."""
    with mock.patch.object(ProgressCursor, "_is_reached", return_value=True):
        yield


@contextmanager
def _probe_sees_less() -> Iterator[None]:
    """Make progress cursors miss events that the first cursors return."""

    def narrowed(database: str, command: Mapping[str, Any], after: bytes) -> Any:
        found, probe = progress_command(database, command, after)
        nothing = {"$match": {"operationType": "nothing"}}
        return found, {**probe, "pipeline": [*probe["pipeline"], nothing]}

    with mock.patch.object(open_remotes, "progress_command", narrowed):
        yield


@contextmanager
def _held_events_move() -> Iterator[None]:
    """Keep what was read but not returned at a move, although the next stream has it too."""
    original = LogReader.continue_on

    def continue_on(self: LogReader, view: View) -> None:
        moves = hasattr(self, "view")
        kept = {"_taken": self._taken, "_resume": self._resume} if moves else {}
        original(self, view)
        _change(self, view=self.view, **kept)

    with mock.patch.object(LogReader, "continue_on", continue_on):
        yield


@contextmanager
def _exceptions_ignored() -> Iterator[None]:
    """Go on after an exception that has interrupted the processing of a block."""

    def fail(stream: MergedStream, error: Exception) -> None:
        """Leave the stream as it is."""

    with mock.patch.object(MergedStream, "fail", fail):
        yield


SABOTAGE: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "low-watermark": _low_watermark_of_the_fastest,
    "low-watermark-config": _low_watermark_without_the_config_server,
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
