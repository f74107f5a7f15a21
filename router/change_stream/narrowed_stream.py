"""Narrowed streams: the streams of collections and databases as parts of a wider one.

A collection's stream has the events of its database's stream that name the collection, and a
database's stream has those of the cluster's. Only the end differs: a collection's stream ends after
a drop or a rename, a database's after dropDatabase, with an ``invalidate`` that the wider stream
does not have (docs/sharing.md#streams-read-as-parts-of-a-wider-one).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import bson

from router.change_stream.filtered_stream import (
    MALFORMED,
    Distribution,
    FilteredStream,
    StreamsByFilter,
)
from router.change_stream.merged_stream import MergedStream
from router.change_stream.resume_token import event_key, of_invalidate, token_of
from router.filters.fields import Element
from router.filters.paths import PathReader
from router.filters.stream_filter import StreamFilter
from router.filters.values import STRING
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, ProtocolError
from shard_client.wire.documents import decode

_RENAME: Final = b"rename"
_END_A_COLLECTION: Final = frozenset({b"drop", _RENAME, b"dropDatabase"})
_END_A_DATABASE: Final = frozenset({b"dropDatabase"})


class Namespace(NamedTuple):
    """The scope of a narrowed stream: a collection, or a database if ``collection`` is None."""

    database: bytes
    collection: bytes | None

    @property
    def ended_by(self) -> frozenset[bytes]:
        """The operations after which a stream of this scope ends (docs/protocol.md#events)."""
        return _END_A_DATABASE if self.collection is None else _END_A_COLLECTION


def invalidate_after(event: bytes) -> bytes:
    """Return the invalidate that follows an event which ends a stream (docs/protocol.md#events).

    Raises ValueError if the event is malformed.
    """
    try:
        token, fields = decode(token_of(event)), decode(event)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    data = of_invalidate(str(token["_data"]).encode("ascii")).decode("ascii")
    invalidate: dict[str, Any] = {"_id": {**token, "_data": data}, "operationType": "invalidate"}
    for name in ("clusterTime", "wallTime"):
        if name in fields:
            invalidate[name] = fields[name]
    return bson.encode(invalidate)


class Scope:
    """The events of one namespace, for narrowed streams that end together.

    ``end`` is the sort key and the token of the invalidate once its cause has arrived. On several
    shards a collection is dropped by an event each, with equal or different tokens: all events up
    to the first invalidate belong to the stream, and all invalidates with its token. Once ``ended``
    it takes no events.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.streams = StreamsByFilter()
        self.end: tuple[bytes, bytes] | None = None
        self.ended = False
        self._ended_by = namespace.ended_by
        self._events: list[bytes] = []
        self._invalidates: list[bytes] = []

    def add(self, stream: "NarrowedStream") -> None:
        """Add a stream."""
        self.streams.add(stream)
        stream.scope = self

    def take(self, event: bytes, operation: bytes) -> None:
        """Add an event, which ``delivered`` returns; the events come in the stream's order."""
        if self.end is not None:
            self.pass_to(event_key(event))
        if self.ended:
            return
        self._events.append(event)
        if operation in self._ended_by:
            invalidate = invalidate_after(event)
            key = event_key(invalidate)
            if self.end is None:
                self.end = (key, token_of(invalidate))
            if key == self.end[0]:
                self._invalidates.append(invalidate)

    def pass_to(self, key: bytes) -> None:
        """End if all events up to the sort key ``key`` have been taken, and ``end`` is among them.

        An event with the invalidate's own key does not occur in the wider stream.
        """
        if self.end is not None and key >= self.end[0] and not self.ended:
            self._events += self._invalidates
            self.ended = True

    def delivered(self) -> list[bytes]:
        """Return the events taken since the last call."""
        events, self._events = self._events, []
        return events


class NarrowedStream(FilteredStream):
    """The events of a wider stream that belong to a namespace and pass a filter.

    Readable like the stream of that namespace, with its invalidate and its end.
    """

    __slots__ = ("_narrowing", "scope")

    def __init__(
        self, narrowing: "NarrowingDistribution", stream_filter: StreamFilter, floor: bytes
    ) -> None:
        super().__init__(narrowing, stream_filter, floor)
        self._narrowing = narrowing
        self.scope: Scope

    def release(self) -> bool:
        """Append the invalidates once everything before them has been read.

        Return whether there are events to read now.
        """
        before = self.log.end
        if not self.closed:
            self._narrowing.settle(self.scope)
        return self.log.end > before

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """Sort key and token of the mark for a client that has read everything, or None.

        The wider stream's own invalidate is never a mark.
        """
        if self.scope.end is not None:
            return self.scope.end if self.scope.ended else None
        return None if self.overtaken else super().mark

    @property
    def gate(self) -> bytes | None:
        """The sort key up to which all events are in the log."""
        if self.scope.ended and self.scope.end is not None:
            return self.scope.end[0]
        return super().gate

    @property
    def error(self) -> CommandError | None:
        """The error that ended the wider stream after the log's end, or its end."""
        if self.closed or self.scope.ended:
            return None
        error = super().error
        if error is None and self.overtaken:
            return CommandError(ErrorCode.QueryPlanKilled, "the wider change stream has ended")
        return error

    @property
    def ended(self) -> bool:
        """Whether the stream has ended with its own invalidate."""
        return not self.closed and self.scope.ended

    @property
    def ending(self) -> bool:
        """Whether the event that ends the stream has arrived."""
        return self.scope.end is not None

    @property
    def overtaken(self) -> bool:
        """Whether the wider stream has ended with an invalidate of its own, but not this one."""
        return not self.scope.ended and self._narrowing.stream.ended


class NarrowingDistribution(Distribution):
    """A distribution that serves narrowed streams as well as filtered ones."""

    def __init__(self, stream: MergedStream, kept_bytes: int) -> None:
        super().__init__(stream, kept_bytes)
        self._scopes: dict[tuple[bytes, bytes | None], list[Scope]] = {}
        self._databases = 0
        self._ending: dict[Scope, None] = {}
        self._namespaces = PathReader(((b"operationType",), (b"ns", b"db"), (b"ns", b"coll")))
        self._targets = PathReader(((b"to", b"db"), (b"to", b"coll")))

    @property
    def namespaces(self) -> int:
        """The number of namespaces that have narrowed streams."""
        return len(self._scopes)

    def open_narrowed(
        self, namespace: Namespace, stream_filter: StreamFilter, after: bytes
    ) -> NarrowedStream:
        """Return the stream of ``namespace`` beyond the sort key ``after``.

        The merged stream must cover ``after``, which must lie before all events of its cluster
        time: an earlier event of that time could end the stream.
        """
        narrowed = NarrowedStream(self, stream_filter, max(after, self.stream.log.floor))
        scope = Scope(namespace)
        scope.add(narrowed)
        log = self.stream.log
        number = log.number_beyond(after)
        try:
            while number < log.end:
                block = log.block_from(number)
                number += len(block)
                self._sort(block, {namespace: [scope]}, databases=namespace.collection is None)
            self._deliver(scope)
        except MALFORMED as error:
            self._break(error)
        self._opened()
        scopes = self._scopes.get(namespace, [])
        running = next((each for each in scopes if each.end is None), None)
        if scope.end is None and running is not None:
            running.add(narrowed)
        elif not scope.ended:
            if namespace not in self._scopes:
                self._databases += namespace.collection is None
            self._scopes.setdefault(namespace, []).append(scope)
        return narrowed

    def close(self, filtered: FilteredStream) -> None:
        """Stop filling a filtered or narrowed stream; its reader has left."""
        if not isinstance(filtered, NarrowedStream):
            super().close(filtered)
            return
        scope = filtered.scope
        scope.streams.remove(filtered)
        if not scope.streams:
            self._forget(scope)
        self._closed(filtered)

    def settle(self, scope: Scope | None = None) -> None:
        """End the scopes, or only ``scope``, whose invalidates lie within the gate."""
        for each in [each for each in self._ending if scope is None or each is scope]:
            self._deliver(each)

    def _narrow(self, events: list[bytes]) -> None:
        """Append events to the narrowed streams of their namespaces."""
        if self._scopes:
            for scope in self._sort(events, self._scopes, databases=self._databases > 0):
                self._deliver(scope)

    def _sort(
        self,
        events: Iterable[bytes],
        scopes: Mapping[tuple[bytes, bytes | None], Sequence[Scope]],
        *,
        databases: bool,
    ) -> list[Scope]:
        """Add events to the scopes of their namespaces; return the scopes that have some.

        ``databases`` is whether any of the scopes is a database.
        """
        met: dict[Scope, None] = {}
        read = self._namespaces.read
        for event in events:
            operations, database_names, collections = read(event)
            operation = _text(event, operations) or b""
            database = _text(event, database_names) or b""
            collection = _text(event, collections)
            found = scopes.get((database, collection), ())
            if databases and collection is not None:
                found = [*found, *scopes.get((database, None), ())]
            if operation == _RENAME:
                in_database, name = self._targets.read(event)
                if _text(event, in_database) == database:
                    found = [*found, *scopes.get((database, _text(event, name)), ())]
            for scope in found:
                scope.take(event, operation)
                met[scope] = None
        return list(met)

    def _deliver(self, scope: Scope) -> None:
        """Append the events that a scope has taken to its streams' logs."""
        gate = self.gate
        if gate is not None:
            scope.pass_to(gate)
        events = scope.delivered()
        if events:
            size = 0
            for narrowed in scope.streams.by_identity.get(b"", ()):
                self.matches += len(events)
                size = self._append(narrowed, list(events))
            if size:
                self.traffic.add_passed(len(events), size)
            if len(scope.streams.index):
                self._route(events, scope.streams)
        if scope.end is None:
            return
        self._ending[scope] = None
        if scope.ended:
            self._forget(scope)
            for narrowed in list(scope.streams):
                # A filter may leave out the invalidate, but not the end.
                if narrowed.on_events is not None:
                    narrowed.on_events()

    def _forget(self, scope: Scope) -> None:
        """Stop filling a scope."""
        self._ending.pop(scope, None)
        scopes = self._scopes.get(scope.namespace, [])
        if scope in scopes:
            scopes.remove(scope)
            if not scopes:
                del self._scopes[scope.namespace]
                self._databases -= scope.namespace.collection is None


def _text(event: bytes, elements: Sequence[Element]) -> bytes | None:
    """Return the string that a path leads to, or None."""
    kind, start, end = elements[0]
    return event[start + 4 : end - 1] if kind == STRING else None
