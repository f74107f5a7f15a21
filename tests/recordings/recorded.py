"""Reading the recordings of a real cluster (data/README.md)."""

import functools
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

DATA = Path(__file__).parent / "data"


def read(name: str) -> list[dict[str, Any]]:
    """All documents of ``data/<name>.bson.gz``, decoded."""
    return bson.decode_all(gzip.decompress((DATA / f"{name}.bson.gz").read_bytes()))


@functools.cache
def cases() -> Mapping[str, Mapping[str, Any]]:
    """What mongos answered, by the case's name."""
    return {case["case"]: case for case in read("cases")}


@dataclass(frozen=True)
class Reply:
    """One recorded reply; events, token and the whole as raw BSON."""

    stream: str
    via: str
    command: Mapping[str, Any]
    raw: bytes
    events: Sequence[bytes]
    pbrt: bytes | None
    cursor_id: int
    invalidated: bool
    document: Mapping[str, Any]


@functools.cache
def header() -> Mapping[str, Any]:
    """The first document: shards, start and end of the workload."""
    return read_raw()[0]


@functools.cache
def read_raw() -> list[RawBSONDocument]:
    data = gzip.decompress((DATA / "workload.bson.gz").read_bytes())
    return bson.decode_all(data, CodecOptions(document_class=RawBSONDocument))


@functools.cache
def replies() -> Sequence[Reply]:
    """Every recorded reply of the workload's streams, in the order of the recording."""
    return tuple(map(_reply, read_raw()[1:]))


def of(stream: str, via: str) -> list[Reply]:
    """The replies of one stream by way of ``via`` (mongos, a shard's id, or config)."""
    return [r for r in replies() if r.stream == stream and r.via == via]


def streams() -> list[str]:
    return sorted({r.stream for r in replies() if r.via == "mongos"})


def shards(stream: str) -> list[str]:
    return sorted({r.via for r in replies() if r.stream == stream and r.via != "mongos"})


def events(recorded: Sequence[Reply]) -> Iterator[bytes]:
    for reply in recorded:
        yield from reply.events


def _reply(entry: RawBSONDocument) -> Reply:
    reply = entry["reply"]
    cursor = reply.get("cursor", {})
    batch = cursor.get("firstBatch", cursor.get("nextBatch", []))
    pbrt = cursor.get("postBatchResumeToken")
    return Reply(
        entry["stream"],
        entry["via"],
        bson.decode(entry["command"].raw),
        bytes(reply.raw),
        [bytes(event.raw) for event in batch],
        bytes(pbrt.raw) if pbrt is not None else None,
        cursor.get("id", 0),
        bool(cursor.get("invalidated")),
        bson.decode(reply.raw) if not batch else {},
    )
