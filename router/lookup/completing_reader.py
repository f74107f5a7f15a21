"""A reader that completes one stream's events: the lookup, then the user's stages."""

import asyncio
from contextlib import ExitStack
from typing import Self

import anyio

from router.limits.cursor_admission import Quota
from router.limits.memory import Holding, Memory
from router.lookup.event_splitting import split, whole_events
from router.lookup.events import Lookup, has_updates, lookup_of, with_document
from router.lookup.find_documents import Found, find_documents
from router.lookup.pushdown import LookupPlan
from router.lookup.upstream_reads import UpstreamReads
from router.lookup.user_stages import Transformed, UserStages
from router.stream.client_reader import ClientReader
from router.stream.merge.event_log import ELEMENT_OVERHEAD, cut
from router.stream.open_streams import OpenStreams
from router.stream.readers.log_reader import Batch
from router.stream.readers.resume_point import ResumePoint
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import token_key, token_of

_GROWTH = 4


class CompletingReader:
    """Completes the events of a client reader when the client asks for them.

    Events are taken from the stream a few at a time and completed immediately, in the client's own
    getMore: no document is looked up before the client requests the event. Completed events that do
    not fit into a reply are kept for the next one. Events that are taken, and their documents,
    count in ``memory``, that of the client's user, until they are handed out.

    Create it with ``open``. ``same_collection`` is whether the servers look documents up by the
    collection's UUID whatever the request says, as servers older than 7.0 do.
    """

    client_reader: ClientReader

    def __init__(
        self,
        plan: LookupPlan,
        reads: UpstreamReads,
        memory: Memory,
        *,
        same_collection: bool = False,
    ) -> None:
        self._plan = plan
        self._reads = reads
        self._stages = UserStages(plan, reads) if plan.stages else None
        self._lookups = reads.settings.first_lookups
        """The most documents to look up at a time; adapted to their sizes."""
        options = plan.remote.change_stream_options
        self._same_collection = same_collection or bool(
            options.get("matchCollectionUUIDForUpdateLookup")
        )
        self._resume = None if plan.resume is None else ResumePoint(plan.resume)
        self._loop = asyncio.get_running_loop()
        self._taken = Batch([], 0, b"", closed=False)
        self._raw: list[bytes] = []
        self._completed: list[bytes] = []
        self._pbrt = b""
        self._failure: CommandError | None = None
        self._work = anyio.CancelScope()
        """The scope in which events were last completed, which ``interrupt`` ends."""
        self._held = Holding(memory)
        memory.add(lookups=1)
        self._counted = ExitStack()
        """Counts the reader in the memory, until it is closed."""
        self._counted.callback(memory.add, lookups=-1)

    @classmethod
    async def open(
        cls, streams: OpenStreams, quota: Quota, plan: LookupPlan, reads: UpstreamReads
    ) -> Self:
        """Return a reader from the start of the plan's request on.

        The user's stages are validated first, as by mongos. Raises CommandError.
        """
        cluster, memory = streams.cluster, streams.resources.memory.of(quota.user)
        reader = cls(plan, reads, memory, same_collection=cluster.versions.of_tokens < 2)
        try:
            if reader._stages is not None:
                await reader._stages.check(reader._held)
                reader._held.size = 0
            reader.client_reader = await ClientReader.open(streams, plan.remote, quota)
        except BaseException:
            reader._let_go()
            raise
        return reader

    def first_batch(self) -> Batch:
        """Return the opening's batch, which has no events, with the client's own token.

        Raises CommandError.
        """
        first = self.client_reader.first_batch()
        self._pbrt = first.pbrt if self._plan.resume is None else self._plan.resume.raw
        return first._replace(pbrt=self._pbrt)

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return the events that are ready, completed; otherwise as ``ClientReader.next_batch``.

        ``max_time`` limits the wait for events that the stages keep, not the lookups.
        """
        deadline = self._loop.time() + max_time
        events: list[bytes] = []
        size, lacks_fragments = 0, False
        while True:
            if self.client_reader.interrupted is not None:
                raise self.client_reader.interrupted
            size += self._hand_out(events, batch_size, size)
            if self._completed or len(events) == batch_size:
                break
            if batch_size is None and size >= self._reads.settings.reply_target_bytes:
                break
            if self._failure is not None:
                if events:
                    break
                raise self._failure
            if self._raw and not lacks_fragments:
                lacks_fragments = not await self._complete_taken()
                left = self._raw or self._completed or self._failure
                if not left and self._loop.time() >= deadline:
                    break  # the stages drop all events
            elif self._taken.closed or not await self._take(deadline, batch_size, events):
                break
            else:
                lacks_fragments = False
        return self._reply(events, size)

    def interrupt(self, reason: CommandError) -> None:
        """Fail pending and later ``next_batch`` calls at once with ``reason``."""
        self.client_reader.interrupt(reason)
        self._work.cancel()

    def close(self) -> None:
        """Stop reading; idempotent."""
        self.client_reader.close()
        self._let_go()

    def _let_go(self) -> None:
        """Let go of the events that are taken, and count no longer; idempotent."""
        self._raw, self._completed = [], []
        self._held.size = 0
        self._counted.close()

    # Events in, batches out.

    @property
    def _at_once(self) -> int:
        """Number of events to complete at a time."""
        return 1 if self._held.memory.short else self._reads.settings.most_lookups

    async def _take(self, deadline: float, batch_size: int | None, events: list[bytes]) -> bool:
        """Take the next events to complete; return whether there is anything to process.

        If there are no ``events`` yet, wait for them until ``deadline``. A failure or a kill also
        counts as something to process.
        """
        reader = self.client_reader
        if events and not reader.prepare() and reader.interrupted is None:
            return False
        await reader.until_ready(deadline)
        if reader.interrupted is not None:
            return True
        most = self._at_once
        if batch_size is not None:
            most = min(most, batch_size - len(events))
        try:
            self._taken = reader.take(most)
        except CommandError as error:
            self._failure = error
            return True
        if not self._taken.events:
            return False
        self._raw = self._raw + self._taken.events
        self._held.size += self._taken.size
        return True

    async def _complete_taken(self) -> bool:
        """Complete the first of the taken events, unless ``interrupt`` ends that.

        Return False if they are only the first fragments of an event.
        """
        consumed = 1
        try:
            with anyio.CancelScope() as self._work:
                consumed, self._completed = await self.complete(self._raw)
                self._raw = self._raw[consumed:]
        except CommandError as error:
            self._failure = error
        finally:
            self._held.size = sum(map(len, self._raw)) + sum(map(len, self._completed))
        return consumed > 0

    def _hand_out(self, events: list[bytes], batch_size: int | None, size: int) -> int:
        """Move the completed events that still fit to ``events``; return their size in bytes."""
        if not self._completed:
            return 0
        most = None if batch_size is None else batch_size - len(events)
        space = self.client_reader.reply_bytes - size - ELEMENT_OVERHEAD * len(events)
        part, part_size = cut(self._completed[:most], space, first=not events)
        self._completed = self._completed[len(part) :]
        events += part
        self._held.size -= part_size
        return part_size

    def _reply(self, events: list[bytes], size: int) -> Batch:
        rest = bool(self._completed or self._raw or self._failure is not None)
        closed = self._taken.closed and not rest and not events
        before = self._pbrt
        if not rest:
            self._pbrt = self._taken.pbrt
        elif events:
            self._pbrt = token_of(events[-1])
        if self._plan.splits:
            # The tokens of fragments sort after that of their event, which was taken whole.
            handed_out = map(token_of, events[-1:])
            self._pbrt = max(before, self._pbrt, *handed_out, key=token_key)
        return Batch(events, size, self._pbrt, closed)

    # Completing.

    async def complete(self, events: list[bytes]) -> Transformed:
        """Complete the first of the ``events``, as many as is reasonable at once.

        At least one is completed, unless ``events`` holds only the first fragments of an event.
        While it runs, the documents received count as held; afterwards the caller counts what it
        keeps. Raises CommandError if the first event cannot be completed.
        """
        if not self._plan.splits:
            return await self._complete(events)
        whole, counts = whole_events(events)
        if not whole:
            return Transformed(0, [])
        done = await self._complete(whole)
        fragments: list[bytes] = []
        for event in done.events:
            try:
                fragments += self._beyond_token(split(event))
            except CommandError as error:
                if not fragments:
                    raise
                self._failure = error
                break
        return Transformed(sum(counts[: done.consumed]), fragments)

    def _beyond_token(self, fragments: list[bytes]) -> list[bytes]:
        if self._resume is None:
            return fragments
        beyond = self._resume.drop_seen(fragments)
        if self._resume.passed:
            self._resume = None
        return beyond

    async def _complete(self, events: list[bytes]) -> Transformed:
        part = events[: self._at_once]
        if has_updates(part):
            part = await self._with_documents(part)
        if self._stages is None:
            return Transformed(len(part), part)
        return await self._stages.transform(part, self._held)

    async def _with_documents(self, events: list[bytes]) -> list[bytes]:
        lookups, error = _first_lookups(events, self._lookups)
        found = Found([], 0, None)
        updates = [lookup for lookup in lookups if lookup is not None]
        if updates:
            found = await find_documents(
                self._reads,
                updates,
                held=self._held,
                # Servers with version 1 tokens always require the same collection.
                same_collection=self._same_collection or updates[0].source.token_version < 2,
                read_preference=self._plan.remote.read_preference,
            )
        looked_up = iter(found.documents)
        completed: list[bytes] = []
        for event, lookup in zip(events, lookups, strict=False):
            if lookup is None:
                completed.append(event)
                continue
            try:
                any_size = self._plan.splits or self._stages is not None
                completed.append(
                    with_document(event, lookup.place, next(looked_up), any_size=any_size)
                )
            except StopIteration:
                error = found.error
                break
            except CommandError as too_large:
                error = too_large
                break
        if error is not None:
            self._lookups = 1
        elif len(found.documents) < len(updates):
            self._lookups = len(found.documents)
        elif updates:
            fitting = self._reads.target_bytes(self._held) * len(updates) // max(1, found.size)
            most = min(self._reads.settings.most_lookups, self._lookups * _GROWTH)
            self._lookups = max(1, min(most, fitting))
        if not completed and error is not None:
            raise error
        return completed


def _first_lookups(
    events: list[bytes], most: int
) -> tuple[list[Lookup | None], CommandError | None]:
    """Return the lookups of the first events, ``most`` of them; and the error if one is malformed.

    They end before the malformed event.
    """
    lookups: list[Lookup | None] = []
    for event in events:
        try:
            lookup = lookup_of(event)
        except CommandError as error:
            return lookups, error
        lookups.append(lookup)
        if lookup is not None:
            most -= 1
            if not most:
                break
    return lookups, None
