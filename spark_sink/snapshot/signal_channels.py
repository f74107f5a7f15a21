"""Channels of signals: a folder of JSON files, and a collection of the cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import bson
from bson import ObjectId, json_util
from bson.timestamp import Timestamp
from pyarrow import fs

from spark_sink.console import say
from spark_sink.errors import HistoryLostError, StreamError
from spark_sink.events.positions import AtTime, FromNow, Position, Token, after, key_of
from spark_sink.events.slices import CODEC, UNREADABLE
from spark_sink.folders import Folder, is_local
from spark_sink.options.stream_options import DEFAULT_RETRY_POLICY, RetryPolicy, StreamOptions
from spark_sink.snapshot.queue import SnapshotQueue
from spark_sink.snapshot.scheduler import SIGNAL, SnapshotScheduler
from spark_sink.snapshot.signal import ReceivedSignal, SignalError, digest, parsed_json
from spark_sink.stream.event_stream import EventStream
from spark_sink.stream.raw_replies import StreamCursor
from spark_sink.stream.router_client import RouterClient

# The most signals received together, whose notifications are in one offset.
MAX_SIGNALS = 2
# The most bytes of a signal.
_MAX_BYTES = 64 * 1024
# The most files in the folder, and those of processed signals, whose ids are in the offset.
_MAX_FILES, _MAX_PROCESSED = 1000, 50
# Seconds between two polls of a folder: a local one, or one of a service that counts requests.
_POLL_LOCAL, _POLL_REMOTE = 1.0, 10.0
# Seconds after which a file without valid JSON counts as completely written.
_WRITE_TIMEOUT = 10.0
# Seconds for the first poll of the collection to reach the present.
_CATCH_UP_TIMEOUT = 10.0
# Seconds that a getMore on the collection waits: each batch makes one.
_AWAIT = 0.001
# A file's path, size and time: one that is written again is read again.
_Version = tuple[str, int | None, int | None]
_LOST = (
    "the oplogs no longer contain the position in the collection of signals {}: send those again "
    "that were sent before the position of the stream"
)


class SignalFolder:
    """Signals in files `*.json` of a folder, which need not exist.

    The id of a signal is its field `id`, or else the file's name without its ending. Files are read
    in the order of their names, and removed after a batch that has processed them is committed. The
    folder is a path or a URI. Raises OptionError if it cannot be read here.
    """

    def __init__(
        self,
        folder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._address, self._folder = folder, Folder(folder)
        self._clock = clock
        self._now = now
        self._poll_interval = _POLL_LOCAL if is_local(folder) else _POLL_REMOTE
        self._next_poll = 0.0
        self._is_read_only = False
        self._waiting: dict[_Version, ReceivedSignal] = {}

    @property
    def waiting(self) -> frozenset[str]:
        """The digests of the ids of signals in files that were there at the last poll."""
        return frozenset(digest(signal.id) for signal in self._waiting.values())

    def receive(self, handled: Container[str]) -> list[ReceivedSignal]:
        """Return new signals, whose ids are not `handled`; none before the next poll is due.

        `handled` contains digests. Raises StreamError, also if processed signals cannot be removed.
        """
        if self._clock() < self._next_poll:
            return []
        before = self._waiting
        read = {v: before.get(v) or self._read(file) for v, file in self._listed().items()}
        self._waiting = {version: signal for version, signal in read.items() if signal is not None}
        new = [signal for signal in self._waiting.values() if digest(signal.id) not in handled]
        processed = len(self._waiting) - len(new)
        if processed >= _MAX_PROCESSED and self._is_read_only:
            raise StreamError(
                f"the folder of signals {self._address} has {processed} files of processed "
                "signals, which the query cannot remove: remove them"
            )
        more = len(new) > MAX_SIGNALS
        self._next_poll = 0.0 if more else self._clock() + self._poll_interval
        return new[:MAX_SIGNALS]

    def remove(self, handled: Container[str]) -> None:
        """Remove the files of signals that a committed batch has processed.

        One that was written again meanwhile has another signal, and stays.
        """
        done = [each for each, signal in self._waiting.items() if digest(signal.id) in handled]
        try:
            there = self._listed() if done else {}
        except StreamError:
            return  # the next poll says why
        for version in done:
            try:
                if version in there:
                    self._folder.remove(version[0])
            except OSError:
                self._is_read_only = True  # the ids stay in the queue
                return
            del self._waiting[version]

    def _listed(self) -> dict[_Version, fs.FileInfo]:
        try:
            files = [
                entry
                for entry in self._folder.listed("")
                if entry.type == fs.FileType.File
                and entry.extension == "json"
                and not entry.base_name.startswith((".", "_"))
            ]
        except (OSError, UnicodeDecodeError) as error:
            raise StreamError(
                f"the folder of signals {self._address} cannot be read: correct option "
                "'signalFolder', or remove files whose names are no UTF-8",
                error,
            ) from None
        if len(files) > _MAX_FILES:
            raise StreamError(
                f"the folder of signals {self._address} has more than {_MAX_FILES} files: remove "
                "those of processed signals"
            )
        in_order = sorted(files, key=lambda each: each.base_name)
        return {(each.path, each.size, each.mtime_ns): each for each in in_order}

    def _read(self, file: fs.FileInfo) -> ReceivedSignal | None:
        """Return the signal of a file; None if it is not completely written, or was removed."""
        name = file.base_name.removesuffix(".json")
        if file.size > _MAX_BYTES:
            return ReceivedSignal(name, f"the file has more than {_MAX_BYTES} bytes")
        try:
            if (text := self._folder.text(file.path)) is None:
                return None  # removed meanwhile
            document = parsed_json(text, "the file")
        except (PermissionError, SignalError) as error:
            if file.mtime is not None and self._now() - file.mtime.timestamp() < _WRITE_TIMEOUT:
                return None  # not completely written yet
            return ReceivedSignal(name, str(error))
        except OSError:
            return None  # the next poll tries it again
        if not isinstance(document, dict):
            return ReceivedSignal(name, "the file must contain a JSON object")
        return ReceivedSignal(_id_text(document.get("id") or name), document)


def send(folder: str, document: dict[str, Any]) -> str:
    """Write a signal into a folder atomically; return its id. Raises OptionError, OSError."""
    identifier = str(document.get("id") or uuid.uuid4())
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    text = json_util.dumps({"id": identifier, **document})
    Folder(folder).write(f"{moment}-{uuid.uuid4().hex[:8]}.json", text)
    return identifier


class SignalCollection:
    """Signals as the documents that are inserted into a collection; their ids are the `_id`s.

    `watch` opens a stream of the inserts after a position.
    """

    def __init__(
        self,
        watch: Callable[[Position], StreamCursor],
        newest: Callable[[], Timestamp],
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        self._watch = watch
        self._newest = newest
        self._retry_policy = retry_policy
        self._stream: EventStream | None = None
        self._reached: Position | None = None
        self._empty_from: Position | None = None  # no signal up to `_reached`

    def receive(
        self, begin: Position, handled: Container[str] = (), reached: Position | None = None
    ) -> tuple[list[ReceivedSignal], Position]:
        """Return the signals after a position, and the position after them. Raises StreamError.

        It is the position that this method has returned last, `reached`. Without one it is `begin`,
        which may be that of another collection's event: then the signals of its cluster time are
        returned, too, without those whose digests are in `handled`.
        """
        position, limit = reached or begin, ""
        if self._stream is None or position not in (self._reached, self._empty_from):
            self.close()
            start = position
            if isinstance(start, Token) and not start.is_high_water_mark:
                start = AtTime(start.cluster_time)
            self._stream = EventStream(
                self._watch,
                start,
                after="" if reached is None else key_of(reached),
                retry_policy=self._retry_policy,
            )
            limit = key_of(after(self._newest()))
        until = time.monotonic() + _CATCH_UP_TIMEOUT
        signals: list[ReceivedSignal] = []
        while len(signals) < MAX_SIGNALS:
            events = self._stream.next_run().events
            for event in events:
                received = _received(event)
                if digest(received.id) not in handled:
                    signals.append(received)
                if len(signals) == MAX_SIGNALS and event is not events[-1]:
                    self.close()  # the next call reads the rest again
                    return signals, Token.of(event)
            place = self._stream.position
            is_at_end = place is not None and place.data >= limit
            if not events and (is_at_end or time.monotonic() >= until):
                break
        self._empty_from = None if signals else position
        self._reached = self._stream.position or position
        return signals, self._reached

    def close(self) -> None:
        """Kill the cursor."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def _received(event: bytes) -> ReceivedSignal:
    try:
        document = bson.decode(event, CODEC)
    except UNREADABLE as error:
        return ReceivedSignal(Token.of(event).data, f"the signal cannot be read: {error}")
    signal = document.get("fullDocument") or {}
    identifier = _id_text(signal.get("_id"))
    if len(event) > _MAX_BYTES:
        return ReceivedSignal(identifier[:100], f"the signal has more than {_MAX_BYTES} bytes")
    return ReceivedSignal(identifier, signal)


def _id_text(identifier: Any) -> str:
    if isinstance(identifier, str | ObjectId):
        return str(identifier)
    return json_util.dumps(identifier)


class SignalReceiver:
    """Receives the signals of a query from the channels that its options name.

    Raises OptionError if the folder of signals cannot be read here.
    """

    def __init__(
        self, client: RouterClient, options: StreamOptions, scheduler: SnapshotScheduler
    ) -> None:
        self._scheduler = scheduler
        self.has_more = False
        """Whether more signals may wait than the last batch has received."""
        folder, collection = options.signal_folder, options.signal_collection
        self._folder = None if folder is None else SignalFolder(folder)
        self._with_retries = client.with_retries
        self._collection = None
        if collection is not None:
            self._lost = _LOST.format(".".join(collection))
            watch = partial(client.watch_inserts, *collection, max_await=_AWAIT)
            self._collection = SignalCollection(
                watch, lambda: client.with_retries(client.clocks).cluster_time, options.retry_policy
            )

    def receive(self, queue: SnapshotQueue, position: Position) -> SnapshotQueue:
        """Return the queue after new signals, at a position of the stream. Raises StreamError.

        If the oplogs have lost the position of the collection of signals, but not the stream's,
        the collection is read from there on, with a notification.
        """
        if isinstance(position, FromNow):  # signals are read from the query's beginning on
            return queue
        self.has_more = False
        waiting: Container[str] = ()
        if self._folder is not None:
            signals = self._folder.receive(queue.handled)
            self.has_more = len(signals) == MAX_SIGNALS
            waiting = self._folder.waiting
            queue = self._process(queue, signals, waiting)
        if self._collection is None:  # one that is added later is read from then on
            return replace(queue, signal_position=None)
        try:
            receive = self._collection.receive
            signals, reached = receive(position, queue.handled, queue.signal_position)
        except HistoryLostError:
            if queue.signal_position is None:
                raise
            signals, reached = receive(position, queue.handled)
            lost = queue.signal_position
            queue = self._scheduler.notified_left_out(queue, lost, position, SIGNAL)
            say(f"warning: {self._lost}")
        self.has_more |= len(signals) == MAX_SIGNALS
        return self._process(replace(queue, signal_position=reached), signals, waiting)

    def _process(
        self, queue: SnapshotQueue, signals: list[ReceivedSignal], waiting: Container[str]
    ) -> SnapshotQueue:
        return self._with_retries(lambda: self._scheduler.process(queue, signals, waiting))

    def committed(self, queue: SnapshotQueue) -> None:
        """Remove the files of signals that a committed batch has processed."""
        if self._folder is not None:
            self._folder.remove(queue.handled)

    def close(self) -> None:
        """Kill the cursor on the collection."""
        if self._collection is not None:
            self._collection.close()
