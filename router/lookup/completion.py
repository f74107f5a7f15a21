"""Completion of one stream's events: the lookup, then the user's stages."""

from router.lookup.events import Wanted, has_updates, wanted, with_document
from router.lookup.find_documents import Found, find_documents
from router.lookup.fragments import split, whole_events
from router.lookup.pushdown import LookupPlan
from router.lookup.upstream_reads import UpstreamReads
from router.lookup.user_stages import Transformed, UserStages
from router.memory import Holding, Memory
from router.request.resume_point import ResumePoint
from shard_client.errors import CommandError

_GROWTH = 4


class Completion:
    """Completes the events of one client's stream, a few at a time, on the client's requests.

    Call ``close`` when the stream is closed.

    Args:
        plan: what follows the merge.
        reads: the way to the upstream.
        memory: the memory of the client's user, in which documents count as events do.
        same_collection: whether the servers look documents up by the collection's UUID whatever
            the request says, as servers older than 7.0 do.
    """

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
        self._at_once = reads.settings.first_events
        options = plan.remote.change_stream_options
        self._same_collection = same_collection or bool(
            options.get("matchCollectionUUIDForUpdateLookup")
        )
        self._resume = None if plan.resume is None else ResumePoint(plan.resume)
        self._failure: CommandError | None = None
        self._closed = False
        self._held = Holding(memory)
        memory.add(lookups=1)

    def close(self) -> None:
        """Count no longer as a cursor with lookups. May be called more than once."""
        if not self._closed:
            self._closed = True
            self._held.memory.add(lookups=-1)

    @property
    def at_once(self) -> int:
        """Number of events to take at a time."""
        return 1 if self._held.memory.short else self._reads.settings.most_events

    @property
    def splits(self) -> bool:
        """Whether one event may become several, the fragments of a large event."""
        return self._plan.splits

    @property
    def resumes_after(self) -> bytes | None:
        """The raw token of a fragment to resume after, or None."""
        return None if self._plan.resume is None else self._plan.resume.raw

    async def check(self) -> None:
        """Validate the user's stages, as mongos does when a stream is opened.

        Raises CommandError if they are invalid.
        """
        if self._stages is not None:
            await self._stages.check(self._held)

    async def complete(self, events: list[bytes]) -> Transformed:
        """Complete the first of the ``events``, as many as is reasonable at once.

        At least one is completed, unless ``events`` holds only the first fragments of an event.
        While it runs, the documents received count as held; afterwards the caller counts what it
        keeps. Raises CommandError if the first event cannot be completed.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return await (self._split if self.splits else self._complete)(events)
        finally:
            self._held.size = 0

    async def _split(self, events: list[bytes]) -> Transformed:
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
        part = events[: self.at_once]
        if has_updates(part):
            part = await self._with_documents(part)
        if self._stages is None:
            return Transformed(len(part), part)
        return await self._stages.transform(part, self._held)

    async def _with_documents(self, events: list[bytes]) -> list[bytes]:
        wants, error = _wants(events, self._at_once)
        found = Found([], 0, None)
        updates = [want for want in wants if want is not None]
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
        for event, want in zip(events, wants, strict=False):
            if want is None:
                completed.append(event)
                continue
            try:
                any_size = self._plan.splits or self._stages is not None
                completed.append(
                    with_document(event, want.place, next(looked_up), any_size=any_size)
                )
            except StopIteration:
                error = found.error
                break
            except CommandError as too_large:
                error = too_large
                break
        if error is not None:
            self._at_once = 1
        elif len(found.documents) < len(updates):
            self._at_once = len(found.documents)
        elif updates:
            self._adapt(len(updates), found.size)
        if not completed and error is not None:
            raise error
        return completed

    def _adapt(self, count: int, size: int) -> None:
        fitting = self._reads.target_bytes(self._held) * count // max(1, size)
        most = min(self._reads.settings.most_events, self._at_once * _GROWTH)
        self._at_once = max(1, min(most, fitting))


def _wants(events: list[bytes], most: int) -> tuple[list[Wanted | None], CommandError | None]:
    """Return the lookups of the first events, ``most`` of them; and the error if one is malformed.

    They end before the malformed event.
    """
    wants: list[Wanted | None] = []
    for event in events:
        try:
            want = wanted(event)
        except CommandError as error:
            return wants, error
        wants.append(want)
        if want is not None:
            most -= 1
            if not most:
                break
    return wants, None
