"""One change stream over all shards, as a state machine without I/O."""

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress

from bson.errors import InvalidBSON
from bson.timestamp import Timestamp

from router.catalog.shard_list import CONFIG
from router.request.stream_request import StreamRequest
from router.stream.merge.event_log import EventLog
from router.stream.merge.merger import FIRST_EVENT, MergeInput, MergeOrderError, Merger, SkippedTime
from router.stream.merge.shard_membership import Membership, ShardSpan, covers_all
from shard_client.bson.resume_token import cluster_time_of, first_key, is_invalidate
from shard_client.errors import RESUMABLE_LABEL, CommandError, ErrorCode
from shard_client.remote_cursor.cursor_reply import CursorBatch, Event, KeyedToken


class MergedStream:
    """The merged stream of one request (docs/design.md#the-merge,
    docs/design.md#opening-and-resuming and docs/design.md#topology).

    ``shards`` maps shard ids to host strings ("rs/h1:p,h2:p"), as read from ``config.shards`` at or
    after ``topology_from``, which is None if they never change; ``start_at`` is where every shard
    starts (for a resume token: the token's cluster time). ``spans`` are those of the stream that
    its first client has left: shards that have gone since are read to their ends. ``draining`` are
    the shards that are about to leave.

    Pass it replies and errors with ``batch_arrived`` and ``remote_failed``, keep a cursor open for
    each remote of its ``merger``, and read it through any number of log readers. ``log`` keeps the
    latest released events: up to ``keep_bytes``, and always the newest block. Raises CommandError
    ShardNotFound if the request is for one shard that does not exist.
    """

    def __init__(
        self,
        request: StreamRequest,
        shards: Mapping[str, str],
        *,
        start_at: Timestamp,
        topology_from: Timestamp | None,
        spans: Iterable[ShardSpan] = (),
        draining: Iterable[str] = (),
    ) -> None:
        self.start_at = start_at
        self.log = EventLog(first_key(start_at))
        self.keep_bytes = 0
        """Bytes of memory of released events that ``log`` keeps."""
        self.error: CommandError | None = None
        self.refused = False
        """Whether the error is that of a remote's opening."""
        self.skipped_invalidates: list[bytes] = []
        """The sort keys of the invalidates that no client receives."""
        self.merger = Merger()
        # Bytes of the last released block by remote, until a client has read it.
        self._unread: Mapping[int, int] = {}
        self.membership = Membership(self.merger, start_at)
        only = request.passthrough_to_shard
        if only is not None:
            shards = only_shard(shards, only)
        elif topology_from is not None:
            self.membership.open(MergeInput(CONFIG, "", topology_from, topology=True))
            self.membership.draining.update(draining)
        # The present shards come last: later events of the config server apply to them.
        skipped = FIRST_EVENT if request.starts_after_invalidate else None
        skipped_times: dict[str, SkippedTime] = dict.fromkeys(shards, skipped)
        for span in spans:
            if span.until is None:
                skipped_times[span.shard] = span.skipped_time
            else:
                self.membership.open_removed(span, start_at)
        for shard, host in shards.items():
            skipped = skipped_times[shard]
            self.membership.open(MergeInput(shard, host, start_at, skipped_time=skipped))

    def covers(self, after: bytes, spans: Set[ShardSpan] = frozenset()) -> bool:
        """Return whether all events after the sort key ``after`` are in the log or still to come.

        This includes the events of the shard spans ``spans``, even of shards that have left.
        """
        return self.log.floor <= after and covers_all(
            self.membership.spans_beyond(after), spans, after
        )

    def batch_arrived(self, remote: int, batch: CursorBatch) -> None:
        """Process one reply of a remote's cursor, including the first reply after an opening.

        A batch for a remote that has been closed meanwhile is ignored. The stream takes ownership
        of the batch's list of events.
        """
        state = self.merger.remotes.get(remote)
        if state is None or self.error is not None:
            return
        try:
            self._add(state, batch)
        except CommandError as error:
            self.error = error

    def _add(self, remote: MergeInput, batch: CursorBatch) -> None:
        """Add a reply to the merge; raises CommandError if it breaks the rules."""
        if batch.watermark is None:
            raise _broken(remote, "a batch came without a postBatchResumeToken")
        key = batch.watermark.key
        try:
            cluster_time_of(key)
        except ValueError:
            raise _broken(remote, "a postBatchResumeToken is malformed") from None
        events, size = batch.events, batch.size
        if events:
            remote.record_first_event(events[0][0])
        if batch.cursor_id == 0:
            if not (batch.invalidated or is_invalidate(key.decode("ascii"))):
                raise _broken(remote, "its cursor ended", ErrorCode.CursorNotFound)
            events, size = self._end_or_reopen(remote, batch.watermark, events, size)
        if remote.topology:
            if remote.invalidated:
                raise _broken(remote, "config.shards was dropped or renamed")
            # New shards hold the low watermark before the config server's watermark lets it move
            # past them.
            try:
                self.membership.change(events)
            except (KeyError, InvalidBSON) as error:
                reason = f"an event on config.shards is malformed: {error!r}"
                raise _broken(remote, reason) from None
        try:
            self.merger.add_batch(remote.number, events, batch.watermark, size)
        except MergeOrderError as error:
            # A client that resumes gets all events, in order.
            raise _broken(remote, str(error), labels=(RESUMABLE_LABEL,)) from None
        self.membership.retire_removed()

    def _end_or_reopen(
        self, remote: MergeInput, invalidate: KeyedToken, events: list[Event], size: int
    ) -> tuple[list[Event], int]:
        """Process the invalidate that has ended a remote's cursor, after these events.

        It ends the remote; or it is skipped, and the remote is opened again after it. Return the
        events, and their size in bytes, without an invalidate that is skipped.
        """
        if remote.record_invalidate(invalidate.key):
            self.skipped_invalidates.append(invalidate.key)
            self.membership.reopen(remote, invalidate.token)
            if events and events[-1][0] == invalidate.key:  # a user's $match may have removed it
                return events[:-1], size - len(events[-1][1])
        return events, size

    def remote_failed(self, remote: int, error: CommandError, address: str | None = None) -> None:
        """Record a remote's permanent failure; readers get ``error`` after the ready events.

        ``address`` is the "host:port" that failed, for mongos's error message (default: the first
        in the host string). Errors at a cursor's opening keep the shard's message; the message of
        an error from a later getMore names its remote shard.
        """
        state = self.merger.remotes.get(remote)
        if state is None or self.error is not None:
            return
        if state.has_replied:
            where = address or state.host.rpartition("/")[2].partition(",")[0]
            message = f"Error on remote shard {where} :: caused by :: {error.message}"
            error = error.with_labels(message=message)
        self.refused = not state.has_replied
        self.error = error

    def fail(self, error: Exception) -> None:
        """Record an unexpected exception in processing the stream, which then releases no more.

        What was being processed may be lost, so the stream has no watermark from now on either.
        Readers get the error after the events in the log, and can resume. An error from before
        stays theirs.
        """
        self.error = self.error or CommandError.unexpected(error)
        self.merger.clear()
        self._unread = {}

    def close(self) -> None:
        """Free all events now, not when Python collects the stream; no client reads it any more."""
        self.merger.clear()
        self.log.clear()
        self._unread = {}

    def release(self) -> bool:
        """Append the next block to the log, after a client has read the log to its end.

        Return False if nothing is ready.
        """
        try:
            block = self.merger.next_block()
            if block is None:
                self._unread = {}
                return False
            self._unread = block.shares
            self.log.append(block.events, block.size)
            self.log.trim(self.keep_bytes)
        except Exception as error:  # noqa: BLE001 - whatever it is, the block may be lost
            self.fail(error)
            return False
        return True

    @property
    def low_watermark(self) -> bytes:
        """The sort key up to which all events are in the log once nothing is ready, or b""."""
        return self.merger.low_watermark

    @property
    def high_water_mark(self) -> KeyedToken | None:
        """The high water mark of a client that has read everything, or None."""
        return self.merger.high_water_mark

    @property
    def reached(self) -> bytes:
        """The sort key up to which everything is ready, at least that of the start."""
        return self.merger.low_watermark or first_key(self.start_at)

    @property
    def ended(self) -> bool:
        """Whether everything up to an invalidate is released: no events follow."""
        merger, low_watermark = self.merger, self.merger.low_watermark
        if not low_watermark or merger.ready:
            return False
        return any(merger.remotes[each].invalidated for each in merger.remotes_at(low_watermark))

    # Which remotes the stream waits for.

    @property
    def is_held_back(self) -> bool:
        """Whether the low watermark holds back all buffered events.

        Events that a silent remote holds back count too.
        """
        return self.merger.buffered > 0 and not (self._unread or self.merger.ready)

    @property
    def _tail(self) -> bytes:
        """The last buffered event's sort key, if a watermark that can advance holds it back.

        b"" otherwise: of a stream that has failed, and while the slowest remote is silent.
        """
        slowest = self.merger.slowest_remote
        if slowest is None or self.error is not None or not self.is_held_back:
            return b""
        return self.merger.last_key if self._can_advance(slowest) else b""

    @property
    def has_laggards(self) -> bool:
        """Whether there are ``laggards``: the answer costs the same for any number of remotes."""
        is_late = self._tail > self.merger.low_watermark
        return is_late or any(map(self._can_advance, self.membership.leaving))

    def is_laggard(self, number: int) -> bool:
        """Return whether the remote is one of the ``laggards``."""
        late = self.merger.remotes[number].watermark < self._tail
        return (late or number in self.membership.leaving) and self._can_advance(number)

    def laggards(self) -> dict[int, Timestamp]:
        """Return the remotes that are waited for, and the times that their watermarks must pass.

        While nothing is ready these are all remotes that hold back any buffered event, the slowest
        shard first, with the time of the last such event; then those of removed shards, with the
        time of the removal. Remotes that have not replied yet, and remotes whose streams have
        ended, are left out. While the slowest remote is one of these, no event is waited for.
        """
        times = dict[int, Timestamp]()
        if tail := self._tail:
            with suppress(ValueError):  # a damaged token has no cluster time to pass
                times = dict.fromkeys(self.merger.remotes_below(tail), cluster_time_of(tail))
        for number, removed_at in sorted(self.membership.leaving.items()):
            removal = cluster_time_of(removed_at)
            times[number] = max(removal, times.get(number, removal))
        return {number: time for number, time in times.items() if self._can_advance(number)}

    def _can_advance(self, number: int) -> bool:
        remote = self.merger.remotes[number]
        return remote.has_replied and not remote.invalidated

    def buffered_bytes(self, remote: int) -> int:
        """Return the bytes of events from ``remote`` that no client has read yet."""
        merged = self.merger.remotes.get(remote)
        return 0 if merged is None else merged.buffered + self._unread.get(remote, 0)

    @property
    def all_buffered_bytes(self) -> int:
        """The same bytes, summed over all remotes."""
        return self.merger.buffered + sum(self._unread.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the stream's events take, buffered or in the log."""
        return self.merger.buffered + self.log.memory


def _broken(
    remote: MergeInput,
    reason: str,
    code: ErrorCode = ErrorCode.InternalError,
    labels: Iterable[str] = (),
) -> CommandError:
    message = f"The change stream of {remote.target} broke its rules: {reason}"
    return CommandError(code, message, labels=labels)


def only_shard(shards: Mapping[str, str], shard: str) -> Mapping[str, str]:
    """Return a mapping of one shard out of ``shards``; raises CommandError if it is absent."""
    if shard not in shards:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard} not found")
    return {shard: shards[shard]}
