"""Reading the recordings of a real cluster (data/README.md)."""

import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from tests.recordings.workload import STREAMS

DATA = Path(__file__).parent / "data"


def read(name: str) -> list[dict[str, Any]]:
    """Return all documents of ``data/<name>.bson.gz``, decoded."""
    return bson.decode_all(gzip.decompress((DATA / f"{name}.bson.gz").read_bytes()))


def tokens() -> list[dict[str, Any]]:
    """Return the recorded tokens of many types of ``_id`` (data/README.md)."""
    found: list[dict[str, Any]] = json.loads((DATA / "tokens.json").read_text())
    return found


@functools.cache
def cases() -> Mapping[str, Mapping[str, Any]]:
    """Return the recorded cases with mongos's answers, by name."""
    return {case["case"]: case for case in read("cases")}


@dataclass(frozen=True)
class Reply:
    """One recorded reply.

    Only ``raw`` is kept, since all replies together are large; the properties parse it each time.
    """

    stream: str
    via: str
    command: Mapping[str, Any]
    raw: bytes

    @property
    def events(self) -> Sequence[bytes]:
        """The events as raw BSON."""
        cursor = self._cursor
        batch = cursor.get("firstBatch", cursor.get("nextBatch", []))
        return [bytes(event.raw) for event in batch]

    @property
    def pbrt(self) -> bytes | None:
        """The postBatchResumeToken as raw BSON."""
        token = self._cursor.get("postBatchResumeToken")
        return bytes(token.raw) if token is not None else None

    @property
    def cursor_id(self) -> int:
        """The cursor's id; 0 if it is closed or the command failed."""
        return int(self._cursor.get("id", 0))

    @property
    def invalidated(self) -> bool:
        """Whether a shard reports that an invalidate has ended its stream."""
        return bool(self._cursor.get("invalidated"))

    @property
    def document(self) -> Mapping[str, Any]:
        """The whole reply, decoded; empty for a reply with events."""
        cursor = self._cursor
        batch = cursor.get("firstBatch", cursor.get("nextBatch", []))
        return {} if batch else bson.decode(self.raw)

    @property
    def _cursor(self) -> Mapping[str, Any]:
        cursor: Mapping[str, Any] = RawBSONDocument(self.raw).get("cursor", {})
        return cursor


@functools.cache
def header() -> Mapping[str, Any]:
    """Return the first document: shards, start and end of the workload."""
    return bson.decode(next(_documents()).raw)


@functools.cache
def replies() -> Sequence[Reply]:
    """Return all recorded replies of the workload's streams, in the order of the recording."""
    documents = _documents()
    next(documents)
    return tuple(map(_reply, documents))


def _documents() -> Iterator[RawBSONDocument]:
    with gzip.open(DATA / "workload.bson.gz") as file:
        yield from bson.decode_file_iter(file, CodecOptions(document_class=RawBSONDocument))


def of(stream: str, via: str) -> list[Reply]:
    """Return the replies of one stream from ``via`` (mongos, a shard's id, or config)."""
    return [r for r in replies() if r.stream == stream and r.via == via]


def streams() -> list[str]:
    """Return the names of the recorded streams."""
    return sorted(STREAMS)


def shards(stream: str) -> list[str]:
    return sorted({r.via for r in replies() if r.stream == stream and r.via != "mongos"})


def events(recorded: Sequence[Reply]) -> Iterator[bytes]:
    for reply in recorded:
        yield from reply.events


def _reply(entry: RawBSONDocument) -> Reply:
    raw = bytes(entry["reply"].raw)
    return Reply(entry["stream"], entry["via"], bson.decode(entry["command"].raw), raw)
