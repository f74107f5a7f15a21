"""A change stream's cursor: batches, waiting for data, and each batch's postBatchResumeToken."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from embedded.change_streams.request import StreamRequest, parse_request
from embedded.change_streams.stream import ChangeStream
from embedded.change_streams.user_stages import SPLIT, UserStages
from embedded.cursors import FIRST_BATCH, MAX_BATCH_BYTES, Batch
from embedded.errors import CommandError, ErrorCode
from embedded.logical_clock import as_ordinal, as_timestamp
from embedded.member import Member
from shard_client.bson.resume_token import ResumeToken

_ENTRIES_AT_A_TIME: Final = 256
"""Oplog entries, or events, to process before other tasks run."""

_ELEMENT_OVERHEAD: Final = 8


class ChangeStreamCursor:
    """A tailable, awaiting cursor over a change stream (docs/protocol.md#cursor-replies).

    Call ``next_batch`` from one task at a time; it ends early if that task is cancelled.
    """

    def __init__(self, member: Member, request: StreamRequest, stream: ChangeStream) -> None:
        self._member = member
        self._stream = stream
        self._first = True
        self._held_back: tuple[RawBSONDocument, dict[str, Any]] | None = None
        self.namespace = request.namespace

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return up to ``batch_size`` events, limited to 16 MiB.

        The first batch never waits, and holds at most 101 events when ``batch_size`` is None. Later
        batches wait up to ``max_time`` seconds for a first event.

        Raises:
            CommandError: with the server's message and labels; the cursor has then ended.
        """
        first, self._first = self._first, False
        limit = batch_size if batch_size is not None else (FIRST_BATCH if first else None)
        try:
            return await self._batch(limit, 0.0 if first else max_time)
        except CommandError as error:
            where = "PlanExecutor error during aggregation"
            if not first:
                where = "Executor error during getMore"
            raise CommandError(
                error.code,
                f"{where} :: caused by :: {error.message}",
                code_name=error.code_name,
                labels=error.labels,
            ).with_change_stream_label() from error

    async def _batch(self, limit: int | None, max_time: float) -> Batch:
        events: list[RawBSONDocument] = []
        stream = self._stream
        size = 0
        if limit == 0 and not stream.invalidated:
            return _batch([], self._pbrt)
        deadline = asyncio.get_running_loop().time() + max_time
        while limit is None or len(events) < limit:
            before = stream.resume_token
            event = await self._next_event(deadline, wait=not events)
            if event is None:
                if stream.invalidated:
                    return _batch(events, stream.end_token, invalidated=True)
                break
            size += len(event.raw) + _ELEMENT_OVERHEAD
            if events and size > MAX_BATCH_BYTES:
                self._held_back = (event, before)
                break
            events.append(event)
            if len(events) % _ENTRIES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return _batch(events, self._pbrt)

    @property
    def _pbrt(self) -> dict[str, Any]:
        """The batch's postBatchResumeToken: its last event's token if another is held back."""
        return self._stream.resume_token if self._held_back is None else self._held_back[1]

    async def _next_event(self, deadline: float, *, wait: bool) -> RawBSONDocument | None:
        """Return the next event; ``wait`` for one until ``deadline`` on the loop's clock."""
        if self._held_back is not None:
            event, _ = self._held_back
            self._held_back = None
            return event
        stream = self._stream
        while (following := stream.next_event(_ENTRIES_AT_A_TIME)) is None:
            if stream.invalidated:
                return None
            if not stream.at_end:
                await asyncio.sleep(0)
            elif not (wait and await self._wait(deadline)):
                return None
        return following

    async def _wait(self, deadline: float) -> bool:
        """Wait for the oplog to grow; return whether it grew before ``deadline``."""
        seconds = deadline - asyncio.get_running_loop().time()
        return seconds > 0 and await self._member.oplog.wait_beyond(self._stream.scanned, seconds)


def _batch(
    events: list[RawBSONDocument], token: dict[str, Any], *, invalidated: bool = False
) -> Batch:
    ended = {"invalidated": True} if invalidated else {}
    return Batch(events, invalidated, {"postBatchResumeToken": token, **ended})


def is_change_stream(command: Mapping[str, Any]) -> bool:
    """Return whether an aggregate command has a stage that only change streams may have."""
    pipeline = command.get("pipeline")
    return isinstance(pipeline, list) and any(
        isinstance(stage, Mapping) and ("$changeStream" in stage or SPLIT in stage)
        for stage in pipeline
    )


def open_change_stream(
    member: Member, database: str, command: Mapping[str, Any]
) -> ChangeStreamCursor:
    """Open the cursor of an aggregate command for which ``is_change_stream`` is true.

    The oplog is not read before ``next_batch``.

    Raises:
        CommandError: as mongod does (docs/protocol.md#opening).
    """
    target = command.get("aggregate")
    collection = target if isinstance(target, str) else None
    pipeline = command["pipeline"]
    if collection is not None and member.catalog.view(f"{database}.{collection}") is not None:
        raise CommandError(
            ErrorCode.CommandNotSupportedOnView,
            f"Namespace {database}.{collection} is a view, not a collection",
        )
    version = 2 if SPLIT in pipeline[-1] else member.server_version.token_version
    request = parse_request(
        database, collection, pipeline[0], version, member.server_version.stream_options
    )
    start = request.token
    if start is None:
        start = ResumeToken.high_water_mark(_after_last(member), version)
    stages = UserStages.of(pipeline[1:], command)
    stream = ChangeStream(member, request, stages, start, version)
    return ChangeStreamCursor(member, request, stream)


def _after_last(member: Member) -> Any:
    last = member.oplog.last_ts
    return as_timestamp(1 if last is None else as_ordinal(last) + 1)


def first_batch_size(command: Mapping[str, Any]) -> int | None:
    """Return ``cursor.batchSize`` of an aggregate command, None if it is absent."""
    size = (command.get("cursor") or {}).get("batchSize")
    return None if size is None else int(size)
