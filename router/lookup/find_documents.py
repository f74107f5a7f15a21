"""Lookup of the documents of many events in few requests (docs/lookups.md)."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple

from bson.binary import UUID_SUBTYPE, Binary
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from router.bson_text import render
from router.limits.memory import Holding
from router.lookup.events import Lookup, SourceCollection
from router.lookup.keys import DocumentKey, assign, filter_for_all, requests_of
from router.lookup.upstream_reads import Result, UpstreamReads
from shard_client import spans
from shard_client.errors import RESUMABLE_CODES, CommandError, ErrorCode
from shard_client.wire.documents import decode

_timestamp = Struct("<II").unpack

_NO_SUCH_COLLECTION: Final = frozenset(
    {ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch}
)


class Found(NamedTuple):
    """The documents of the first of the wanted events, None for each that has no document.

    ``size`` is the size in bytes of all documents received, including those left out. ``error`` is
    that of the lookup for the next event, if it failed.
    """

    documents: list[bytes | None]
    size: int
    error: CommandError | None


async def find_documents(
    reads: UpstreamReads,
    lookups: Sequence[Lookup],
    *,
    held: Holding,
    same_collection: bool,
    read_preference: Mapping[str, Any] | None,
) -> Found:
    """Look up the documents in their current or a later state.

    Return fewer than wanted, but at least one or an error, if they are larger than one request
    should return, or take longer than the time limit. ``held`` counts the documents received.
    With ``same_collection``, a collection recreated under the old name does not count. Errors are
    those of a lookup by mongos.
    """
    groups: dict[SourceCollection, _Group] = {}
    for lookup in lookups:
        group = groups.get(lookup.source)
        if group is None:
            group = _Group(reads, lookup, held, same_collection, read_preference)
            groups[lookup.source] = group
        group.add(lookup)
    first = next(iter(groups.values()))
    attributes: spans.Attributes = {"db.system.name": "mongodb", "mergerouter.events": len(lookups)}
    with spans.recorded("look documents up", attributes):
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in groups.values():
                    tasks.create_task(group.run(needed=group is first), name="look documents up")
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
    size = sum(group.size for group in groups.values())
    documents: list[bytes | None] = []
    for lookup in lookups:
        group, key = groups[lookup.source], lookup.key.raw
        if key not in group.results:
            return Found(documents, size, group.errors.get(key, group.failure))
        documents.append(group.results[key])
    return Found(documents, size, None)


@dataclass
class _Group:
    """The wanted documents of one collection.

    ``results`` are those found, by raw key, None where there is no document; ``errors`` those of
    single keys. ``failure`` ended the lookups; it concerns all other keys.
    """

    reads: UpstreamReads
    first: Lookup
    held: Holding
    same_collection: bool
    read_preference: Mapping[str, Any] | None
    keys: dict[bytes, DocumentKey] = field(default_factory=dict)
    results: dict[bytes, bytes | None] = field(default_factory=dict)
    errors: dict[bytes, CommandError] = field(default_factory=dict)
    failure: CommandError | None = None
    size: int = 0

    def __post_init__(self) -> None:
        self._source, self._time = self.first.source, self.first.time
        self._collection = self._source.collection
        limit = self.reads.settings.failure_timeout
        self._half = limit / 2
        self._deadline = asyncio.get_running_loop().time() + limit

    def add(self, lookup: Lookup) -> None:
        self.keys.setdefault(lookup.key.raw, lookup.key)
        self._time = lookup.time

    async def run(self, *, needed: bool) -> None:
        """Find the documents, or the first of them; with ``needed``, always the first key's.

        Requests for several keys have half of the time limit. If one takes longer, the rest of the
        time is for the keys one by one, in the order of the events.
        """
        try:
            try:
                for keys in requests_of(self.keys.values()):
                    if not await self._find(keys):
                        break
            except TimeoutError:
                await self._find_each([*self.keys.values()])
            first = self.first.key.raw
            if needed and first not in self.results and first not in self.errors:
                self._deadline += max(0.0, self._half - self._left())
                await self._find_one(self.keys[first])
        except CommandError as error:
            self.failure = error

    async def _find(self, keys: list[DocumentKey]) -> bool:
        """Find documents with different ``_id``; return False if their size or the time is up."""
        pending = keys
        while len(pending) > 1:
            try:
                documents = await self._read(RawBSONDocument(filter_for_all(pending)), len(pending))
            except CommandError as error:
                if error.code in _NO_SUCH_COLLECTION:
                    self._has_none_of(pending)
                    return True
                if error.code == ErrorCode.NetworkTimeout:
                    raise TimeoutError from None
                if error.code in RESUMABLE_CODES:
                    raise
                # One key may be the cause, so look up each alone, with its own result or error.
                return await self._find_each(pending)
            answer = assign(pending, documents.documents)
            self.results.update(answer.found)
            if not documents.whole:
                return False
            self._has_none_of(answer.absent)
            if not await self._find_each(answer.alone):
                return False
            pending = answer.again
        return await self._find_each(pending)

    def _has_none_of(self, keys: Iterable[DocumentKey]) -> None:
        self.results.update((key.raw, None) for key in keys)

    async def _find_each(self, keys: Sequence[DocumentKey]) -> bool:
        for key in keys:
            if key.raw in self.results:
                continue
            if self.size > self.reads.target_bytes(self.held) or self._left() <= 0:
                return False
            await self._find_one(key)
        return True

    async def _find_one(self, key: DocumentKey) -> None:
        """Look up one document as mongos does; raises CommandError if another may fail, too."""
        try:
            self.results[key.raw] = await self._find_whole_key(key)
        except CommandError as error:
            if error.code in RESUMABLE_CODES:
                raise
            self.errors[key.raw] = error

    async def _find_whole_key(self, key: DocumentKey) -> bytes | None:
        """Return the document with the whole document key, or None."""
        try:
            whole = RawBSONDocument(key.raw)
            # A shard key with a string, which a collection's collation may fold, is looked up by
            # its bytes, on the shard that owns them.
            by_bytes = any(field[:1] == b"\x02" for field in key.others)
            documents = (await self._read(whole, None, by_bytes=by_bytes)).documents
            if len(documents) > 1 and not by_bytes:
                # The collection's own collation may treat several keys as equal. It has indexes, so
                # it is tried first. The simple collation, which distinguishes the keys, is second.
                documents = (await self._read(whole, None, by_bytes=True)).documents
        except CommandError as error:
            if error.code not in _NO_SUCH_COLLECTION:
                raise
            return None
        if len(documents) > 1:
            shown = ", ".join(render(decode(document)) for document in documents[:2])
            raise CommandError(
                ErrorCode.ChangeStreamFatalError,
                f"found more than one document matching {render(decode(key.raw))} [{shown}]",
            )
        return documents[0] if documents else None

    def _left(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()

    async def _read(
        self, filter_: RawBSONDocument, count: int | None, *, by_bytes: bool = False
    ) -> Result:
        command: dict[str, Any] = {"find": self._collection, "filter": filter_}
        if by_bytes:
            command["collation"] = {"locale": "simple"}
        if count is not None:
            command |= {"hint": {"_id": 1}, "batchSize": count + 1}
        if self.same_collection:
            command["collectionUUID"] = Binary(self._source.uuid, UUID_SUBTYPE)
        increment, seconds = _timestamp(self._time)
        command["readConcern"] = {
            "level": "majority",
            "afterClusterTime": Timestamp(seconds, increment),
        }
        if self.read_preference is not None:
            command["$readPreference"] = self.read_preference
        read = partial(
            self.reads.read,
            held=self.held,
            most_bytes=self.reads.target_bytes(self.held),
            deadline=self._deadline if count is None else self._deadline - self._half,
        )
        try:
            result = await read(self._source.database, command)
        except CommandError as error:
            renamed = error.extra.get("actualCollection")
            if error.code != ErrorCode.CollectionUUIDMismatch or self._source.token_version < 2:
                raise
            if not isinstance(renamed, str):
                raise
            # As tried on 6.0: a stream with version 2 tokens finds the documents of a renamed
            # collection by its UUID, one with version 1 tokens does not.
            self._collection = command["find"] = renamed
            result = await read(self._source.database, command)
        self.size += sum(map(len, result.documents))
        return result
