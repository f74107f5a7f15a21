"""Document lookups for the update events of one client's stream."""

import asyncio

from router.lookup.completion import Completion
from router.memory import Holding, Memory
from router.stream.client_reader import ClientReader
from router.stream.event_log import ELEMENT_OVERHEAD, cut
from router.stream.log_reader import Batch
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import token_data, token_of


class CompletingReader:
    """Completes the events of a client reader when the client asks for them.

    Events are taken from the stream a few at a time and completed immediately, in the client's own
    getMore: no document is looked up before the client requests the event. Completed events that do
    not fit into a reply are kept for the next one. Events that are taken count in ``memory``, that
    of the client's user, until they are handed out. At ``enough`` bytes a reply is sent to a client
    that sets no batchSize.
    """

    def __init__(
        self, reader: ClientReader, completion: Completion, *, enough: int, memory: Memory
    ) -> None:
        self.finished = False
        """Whether the last batch was the stream's end, or an error."""
        self._client_reader = reader
        self._completion = completion
        self._enough = enough
        self._held = Holding(memory)
        self._loop = asyncio.get_running_loop()
        self._taken = Batch([], 0, b"", closed=False)
        self._raw: list[bytes] = []
        self._completed: list[bytes] = []
        self._pbrt = b""
        self._incomplete = False
        self._failure: CommandError | None = None
        self._work: asyncio.Task[None] | None = None

    def first_batch(self, first: Batch) -> Batch:
        """Return the opening's batch, which has no events, with the client's own token."""
        self._pbrt = self._completion.resumes_after or first.pbrt
        return first._replace(pbrt=self._pbrt)

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return the events that are ready, completed; otherwise as ``ClientReader.next_batch``.

        ``max_time`` limits the wait for events, not the lookups.
        """
        deadline = self._loop.time() + max_time
        events: list[bytes] = []
        size = 0
        try:
            while True:
                if self._client_reader.interrupted is not None:
                    raise self._client_reader.interrupted
                size += self._hand_out(events, batch_size or None, size)
                if self._completed or len(events) == batch_size:
                    break
                if not batch_size and size >= self._enough:
                    break
                if self._failure is not None:
                    if events:
                        break
                    raise self._failure
                if self._raw and not self._incomplete:
                    await self._complete()
                elif self._taken.closed or not await self._take(deadline, batch_size, events):
                    break
        except CommandError:
            self.finished = True
            raise
        return self._reply(events, size)

    def interrupt(self) -> None:
        """End the lookups in progress, after the reader was interrupted."""
        if self._work is not None:
            self._work.cancel()

    def close(self) -> None:
        """Let go of the events that are taken; idempotent."""
        self._completion.close()
        self._raw, self._completed = [], []
        self._held.size = 0

    async def _take(self, deadline: float, batch_size: int | None, events: list[bytes]) -> bool:
        """Take the next events to complete; return whether there is anything to process.

        If there are no ``events`` yet, wait for them until ``deadline``. A failure or a kill also
        counts as something to process.
        """
        if events and not self._client_reader.is_ready and self._client_reader.interrupted is None:
            return False
        await self._client_reader.until_ready(deadline)
        if self._client_reader.interrupted is not None:
            return True
        wanted = self._completion.at_once
        if batch_size:
            wanted = min(wanted, batch_size - len(events))
        try:
            self._taken = self._client_reader.take(wanted)
        except CommandError as error:
            self._failure = error
            return True
        if not self._taken.events:
            return False
        self._raw = self._raw + self._taken.events
        self._held.size += self._taken.size
        self._incomplete = False
        return True

    async def _complete(self) -> None:
        """Complete the first of the taken events, in a task that ``interrupt`` can cancel."""
        work = self._work = self._loop.create_task(self._run(), name="complete events")
        try:
            await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._client_reader.interrupted is None or (task is not None and task.cancelling()):
                raise
        finally:
            self._work = None

    async def _run(self) -> None:
        try:
            consumed, self._completed = await self._completion.complete(self._raw)
            self._incomplete = not consumed
        except CommandError as error:
            self._failure = error
        else:
            self._raw = self._raw[consumed:]
            self._held.size = sum(map(len, self._raw)) + sum(map(len, self._completed))

    def _hand_out(self, events: list[bytes], batch_size: int | None, size: int) -> int:
        """Move the completed events that still fit to ``events``; return their size in bytes."""
        if not self._completed:
            return 0
        wanted = None if batch_size is None else batch_size - len(events)
        space = self._client_reader.reply_bytes - size - ELEMENT_OVERHEAD * len(events)
        part, part_size = cut(self._completed, wanted, space, first=not events)
        self._completed = self._completed[len(part) :]
        events += part
        self._held.size -= part_size
        return part_size

    def _reply(self, events: list[bytes], size: int) -> Batch:
        rest = bool(self._completed or self._raw or self._failure is not None)
        closed = self.finished = self._taken.closed and not rest and not events
        before = self._pbrt
        if not rest:
            self._pbrt = self._taken.pbrt
        elif events:
            self._pbrt = token_of(events[-1])
        if self._completion.splits:
            # The tokens of fragments sort after that of their event, which was taken whole.
            handed_out = map(token_of, events[-1:])
            self._pbrt = max(before, self._pbrt, *handed_out, key=token_data)
        return Batch(events, size, self._pbrt, closed)
