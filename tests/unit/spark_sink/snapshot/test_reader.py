"""Reading a chunk of a snapshot, whatever the servers answer."""

from typing import Any
from unittest.mock import MagicMock

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from spark_sink.errors import StreamError
from spark_sink.snapshot.plan import Chunk, SnapshotCollection
from spark_sink.snapshot.reader import ChunkRead, ChunkReader
from tests.doubles.server_replies import ServerReplies

MARK, LATER = Timestamp(100, 1), Timestamp(900, 1)
CHUNK = Chunk(SnapshotCollection("db", "c"))


def chunk_reader(documents: Any, clock: Any = lambda: 0.0) -> ChunkReader:
    task = ChunkRead(CHUNK, MARK)
    return ChunkReader(documents, task, lambda: LATER, clock=clock, sleep=lambda _: None)


def identifiers(reader: ChunkReader) -> list[tuple[Timestamp, int]]:
    events = [bson.decode(event) for run in reader.runs() for event in run.events]
    return [(event["clusterTime"], event["documentKey"]["_id"]) for event in events]


def test_after_an_outage_longer_than_the_window_a_chunk_is_read_at_the_newest_time() -> None:
    no_primary = OperationFailure("no host matches the read preference", 133)
    documents = ServerReplies([no_primary], [1, OperationFailure("too old", 239)], [1, 2, 3])
    assert identifiers(chunk_reader(documents)) == [(MARK, 1), (LATER, 2), (LATER, 3)]
    assert documents.asked[2] == {"level": "snapshot", "atClusterTime": LATER}


def test_without_reads_at_a_time_the_time_is_taken_before_the_read() -> None:
    documents = ServerReplies([OperationFailure("no", 72)], [1])
    assert identifiers(chunk_reader(documents)) == [(LATER, 1)]
    assert documents.asked[1] == {"level": "majority", "afterClusterTime": LATER}


def test_no_document_is_older_than_the_snapshot_time() -> None:
    moments = iter([Timestamp(99, 1), Timestamp(100, 0), MARK])
    documents = ServerReplies([1])
    reader = ChunkReader(
        documents, ChunkRead(CHUNK, MARK), lambda: next(moments), sleep=lambda _: None
    )
    assert identifiers(reader) == [(MARK, 1)]
    assert len(documents.asked) == 1
    assert next(moments, None) is None  # another router than the planner's may know the time later


def test_a_collection_that_is_renamed_as_its_read_begins_is_read() -> None:
    documents = ServerReplies([], [1, 2], names=["c", "d"])
    assert [number for _, number in identifiers(chunk_reader(documents))] == [1, 2]
    assert identifiers(chunk_reader(ServerReplies([]))) == []


def test_a_read_goes_on_at_any_id_that_servers_store() -> None:
    later = bson.DatetimeMS(1 << 50)  # beyond Python's years
    documents = ServerReplies([1, later, AutoReconnect("away")], [later, bson.MaxKey()])
    assert sum(len(run) for run in chunk_reader(documents).runs()) == 3


def test_a_shard_key_within_the_id_is_read_with_the_id() -> None:
    documents: Any = ServerReplies([])
    documents.find = MagicMock(wraps=documents.find)
    chunk = Chunk(SnapshotCollection("db", "c", key=("_id.a", "b")))
    identifiers(ChunkReader(documents, ChunkRead(chunk, MARK, keys_only=True), lambda: LATER))
    assert documents.find.call_args.args[1] == {"_id": 1, "b": 1}


def test_a_chunk_fails_in_bounded_time_and_a_refusal_immediately() -> None:
    moments = iter(range(0, 1000, 25))
    documents = ServerReplies(*([AutoReconnect("away")] for _ in range(9)))
    with pytest.raises(StreamError, match=r"^gave up after 60 s: a server with db\.c cannot"):
        identifiers(chunk_reader(documents, lambda: next(moments)))
    assert len(documents.asked) == 4
    with pytest.raises(StreamError, match="privilege find"):
        identifiers(chunk_reader(ServerReplies([OperationFailure("no", 13)])))
    task = ChunkRead(CHUNK, MARK, {"$expr": {"$toInt": "$x"}})
    failing: Any = ServerReplies([OperationFailure("no number", 241)])
    with pytest.raises(StreamError, match=r"db\.c for a snapshot with a filter: correct the filt"):
        identifiers(ChunkReader(failing, task, lambda: LATER))
