"""Where signals come from: a folder of JSON files, and a collection of the cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import Any

import bson
from bson import ObjectId, json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pyarrow import fs

from spark_sink.errors import StreamError
from spark_sink.event_stream import EventStream
from spark_sink.folders import open_folder
from spark_sink.patience import DEFAULT_PATIENCE, Patience
from spark_sink.positions import Position, key_of
from spark_sink.signals.ad_hoc import Received
from spark_sink.snapshot.plan import after
from spark_sink.watched_stream import WatchedStream

# Signals that are taken at a time, and bytes that one may have.
MOST_SIGNALS = 100
_LARGEST = 64 * 1024
# Files that may lie in the folder.
_MOST_FILES = 1000
# Seconds between two looks into a folder: on this machine, or on a service that counts requests.
_LOOK_EVERY, _LOOK_ELSEWHERE_EVERY = 1.0, 10.0
# Seconds after which a file that is no JSON is not being written any more.
_WRITTEN_AFTER = 10.0
# Seconds in which the first look at the collection reaches the present.
_CATCH_UP = 10.0

_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)


class SignalFolder:
    """Signals in files `*.json` of a folder, which need not exist.

    The id of a signal is its field `id`, or else the file's name without its ending. Files are read
    in the order of their names, and removed once a batch that has taken them is committed.

    folder: a path or a URI; clock, now: for tests. Raises OptionError if it cannot be read here.
    """

    def __init__(
        self,
        folder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._address = folder
        self._files, self._root = open_folder(folder)
        self._clock = clock
        self._now = now
        local = isinstance(self._files, fs.LocalFileSystem)
        self._every = _LOOK_EVERY if local else _LOOK_ELSEWHERE_EVERY
        self._next_look = 0.0
        self._present: dict[str, str] = {}  # the ids by the files' paths

    @property
    def present(self) -> frozenset[str]:
        """The ids of the signals in files that were there at the last look."""
        return frozenset(self._present.values())

    def receive(self, handled: Container[str]) -> list[Received]:
        """Further signals; none before it is time for another look.

        handled: ids of signals that have been taken. Raises StreamError.
        """
        if self._clock() < self._next_look:
            return []
        self._next_look = self._clock() + self._every
        found: list[Received] = []
        present = {}
        for file in self._listed():
            known = self._present.get(file.path)
            if known is not None and known in handled:
                present[file.path] = known
                continue
            received = self._read(file)
            if received is None:
                continue
            present[file.path] = received.id
            if received.id not in handled and len(found) < MOST_SIGNALS:
                found.append(received)
        self._present = present
        return found

    def remove(self, handled: Container[str]) -> None:
        """Remove the files of signals that a committed batch has taken."""
        for path, identifier in list(self._present.items()):
            if identifier in handled:
                try:
                    self._files.delete_file(path)
                except OSError:
                    return  # the folder cannot be changed here: the ids stay remembered
                del self._present[path]

    def _listed(self) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._root, allow_not_found=True)
        try:
            entries = self._files.get_file_info(selector)
        except OSError as error:
            raise StreamError(
                f"the folder of signals {self._address} cannot be read: correct option "
                "'signalFolder'",
                error,
            ) from None
        files = [
            each
            for each in entries
            if each.type == fs.FileType.File
            and each.extension == "json"
            and not each.base_name.startswith((".", "_"))
        ]
        if len(files) > _MOST_FILES:
            raise StreamError(
                f"the folder of signals {self._address} has more than {_MOST_FILES} files: remove "
                "those of signals that were taken"
            )
        return sorted(files, key=lambda each: each.base_name)

    def _read(self, file: fs.FileInfo) -> Received | None:
        """The signal of a file; None while the file is being written, or if it is gone."""
        name = file.base_name.removesuffix(".json")
        try:
            with self._files.open_input_stream(file.path) as stream:
                text = bytes(stream.read(_LARGEST + 1))
        except OSError:
            return None  # removed since the look, or not readable yet
        if len(text) > _LARGEST:
            return Received(name, f"the file has more than {_LARGEST} bytes")
        try:
            document = json_util.loads(text.decode())
        except (ValueError, TypeError, BSONError, RecursionError) as error:
            if self._is_fresh(file):
                return None
            return Received(name, f"the file is no JSON: {error}")
        if not isinstance(document, dict):
            return Received(name, "the file must hold a JSON object")
        return Received(_text_of(document.get("id", name)), document)

    def _is_fresh(self, file: fs.FileInfo) -> bool:
        written: datetime | None = file.mtime
        return written is not None and self._now() - written.timestamp() < _WRITTEN_AFTER


def send(folder: str, document: dict[str, Any]) -> str:
    """Write a signal into a folder, as a whole; return its id. Raises OptionError, OSError."""
    files, root = open_folder(folder)
    identifier = str(document.get("id") or uuid.uuid4())
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    files.create_dir(root)
    draft = f"{root}/.{uuid.uuid4().hex}"
    with files.open_output_stream(draft) as stream:
        stream.write(json_util.dumps({"id": identifier, **document}).encode())
    files.move(draft, f"{root}/{moment}-{uuid.uuid4().hex[:8]}.json")
    return identifier


class SignalCollection:
    """Signals as the documents that are inserted into a collection; their ids are the `_id`s.

    watch: opens a stream of the inserts after a position; newest: about the newest cluster time;
    patience: how long failures that may pass are tried again.
    """

    def __init__(
        self,
        watch: Callable[[Position], WatchedStream],
        newest: Callable[[], Timestamp],
        patience: Patience = DEFAULT_PATIENCE,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._newest = newest
        self._patience = patience
        self._clock = clock
        self._stream: EventStream | None = None
        self._reached: Position | None = None
        self._asked: Position | None = None  # from where nothing has been found up to `_reached`

    def receive(self, position: Position) -> tuple[list[Received], Position]:
        """The signals after a position, and the position after them. Raises StreamError."""
        limit = ""
        if self._stream is None or position not in (self._reached, self._asked):
            self.close()
            self._stream = EventStream(
                self._watch, position, patience=self._patience, clock=self._clock
            )
            limit = key_of(after(self._newest()))
        until = self._clock() + _CATCH_UP
        found: list[Received] = []
        while len(found) < MOST_SIGNALS:
            event = self._stream.next()
            if event is not None:
                found.append(_received(event))
                continue
            reached = self._stream.position
            if self._clock() >= until or (reached is not None and reached.data >= limit):
                break
        self._asked = None if found else position
        self._reached = self._stream.position or position
        return found, self._reached

    def close(self) -> None:
        """Kill the cursor."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def _received(event: RawBSONDocument) -> Received:
    document = bson.decode(event.raw, _CODEC)
    signal = document.get("fullDocument") or {}
    identifier = _text_of(signal.get("_id"))
    if len(event.raw) > _LARGEST:
        return Received(identifier[:100], f"the signal has more than {_LARGEST} bytes")
    return Received(identifier, signal)


def _text_of(identifier: Any) -> str:
    if isinstance(identifier, str | ObjectId):
        return str(identifier)
    return json_util.dumps(identifier)
