"""Looking up the documents of many events with few requests to a scripted mongos."""

import asyncio
from struct import Struct
from typing import Any

import bson
import pytest
from bson import Timestamp
from bson.binary import Binary

from router.limits.memory import Holding, Memory
from router.lookup import upstream_reads
from router.lookup.events import Lookup, SourceCollection
from router.lookup.find_documents import find_documents
from router.lookup.keys import DocumentKey
from router.lookup.upstream_reads import UpstreamReads
from router.stream_settings import StreamSettings
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError
from tests.doubles.scripted_mongos import ScriptedMongos, scripted_mongos
from tests.harness.until import until
from tests.unit.shard_client.bson_values import encoded

UUID = b"\x11" * 16


def want(key: dict[str, Any], second: int = 1, collection: str = "c") -> Lookup:
    return Lookup(
        SourceCollection("db", collection, UUID, 1),
        DocumentKey.of(encoded(key)),
        Struct("<II").pack(1, second),
        0,
    )


def reads(mongos: ScriptedMongos, **settings: Any) -> UpstreamReads:
    chosen = {"failure_timeout": 2.0, "backoff_first": 0.001, "backoff_max": 0.01, **settings}
    return UpstreamReads(mongos.upstream.lend, ClusterClock(), StreamSettings(**chosen))


async def found(
    source: UpstreamReads, *wants: Lookup, same_collection: bool = True
) -> list[dict[str, Any] | None]:
    result = await find_documents(
        source,
        wants,
        held=Holding(Memory(1 << 30)),
        same_collection=same_collection,
        read_preference={"mode": "nearest"},
    )
    if result.error is not None and not result.documents:
        raise result.error
    return [None if each is None else bson.decode(each) for each in result.documents]


async def test_one_request_finds_the_documents_of_all_events():
    documents = [{"_id": n, "k": 10 * n} for n in range(5)]
    async with scripted_mongos(c=documents) as mongos:
        wants = [
            want({"k": 10 * n, "_id": n}, second=second)
            for n, second in ((3, 97), (1, 98), (4, 99))
        ]
        assert await found(reads(mongos), *wants) == [documents[n] for n in (3, 1, 4)]
        [command] = mongos.commands
    assert command["find"] == "c"
    assert command["filter"] == {"k": {"$in": [30, 10, 40]}, "_id": {"$in": [3, 1, 4]}}
    assert command["hint"] == {"_id": 1}
    assert command["collectionUUID"] == Binary(UUID, 4)
    concern = {"level": "majority", "afterClusterTime": Timestamp(99, 1)}
    assert command["readConcern"] == concern
    assert command["$readPreference"] == {"mode": "nearest"}


async def test_a_single_document_is_requested_by_its_key_as_by_mongos():
    async with scripted_mongos(c=[{"_id": 1, "n": {"k": 2}}]) as mongos:
        wants = [want({"n.k": 2, "_id": 1})] * 3
        assert (
            await found(reads(mongos), *wants, same_collection=False)
            == [{"_id": 1, "n": {"k": 2}}] * 3
        )
        [command] = mongos.commands
    assert command["filter"] == {"n.k": 2, "_id": 1}
    assert "hint" not in command
    assert "collectionUUID" not in command


async def test_a_text_in_a_shard_key_is_found_under_any_collation():
    async with scripted_mongos(c=[{"_id": 1, "k": "a"}]) as mongos:
        assert await found(reads(mongos), want({"k": "a", "_id": 1})) == [{"_id": 1, "k": "a"}]
        assert await found(reads(mongos), want({"_id": "a"})) == [None]
        assert [each.get("collation") for each in mongos.commands] == [{"locale": "simple"}, None]


async def test_a_renamed_collection_is_read_under_its_new_name():
    async with scripted_mongos(renamed=[{"_id": 1}, {"_id": 2}]) as mongos:
        mismatch = {"ok": 0.0, "errmsg": "other", "code": 361, "actualCollection": "renamed"}
        mongos.refuse = lambda _: mismatch if mongos.commands[-1]["find"] == "c" else None
        newer = [
            want({"_id": key})._replace(source=SourceCollection("db", "c", UUID, 2))
            for key in (1, 3)
        ]
        assert await found(reads(mongos), *newer) == [{"_id": 1}, None]
        assert await found(reads(mongos), want({"_id": 1})) == [None]


async def test_a_resumable_error_is_raised_immediately():
    async with scripted_mongos(c=[{"_id": 1}]) as mongos:
        mongos.fail("find", 133)
        with pytest.raises(CommandError) as error:
            await found(reads(mongos), want({"_id": 1}), want({"_id": 2}))
        assert error.value.code == 133
        assert len(mongos.commands) == 1


async def test_slow_requests_do_not_delay_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upstream_reads, "_SLOW_SECONDS", 0.02)
    async with scripted_mongos(c=[{"_id": 1}]) as mongos:
        source = reads(mongos, lookup_connections=2)
        mongos.released.clear()
        mongos.holds_back = "find"
        slow = [asyncio.create_task(found(source, want({"_id": 1}))) for _ in range(3)]
        await until(lambda: len(mongos.commands) == 3)
        mongos.holds_back = "none"
        assert await found(source, want({"_id": 1})) == [{"_id": 1}]
        assert not any(task.done() for task in slow)
        mongos.released.set()
        assert await asyncio.gather(*slow) == [[{"_id": 1}]] * 3


async def test_a_request_does_not_wait_for_its_turn_beyond_its_time():
    async with scripted_mongos(c=[{"_id": 1}]) as mongos:
        source = reads(mongos, lookup_connections=1, failure_timeout=0.1)
        mongos.released.clear()
        holding = asyncio.create_task(found(source, want({"_id": 1})))
        await until(lambda: mongos.commands)
        with pytest.raises(CommandError) as error:
            await found(source, want({"_id": 1}))
        assert error.value.code == 89
        assert len(mongos.commands) == 1
        mongos.released.set()
        assert await holding == [{"_id": 1}]


async def test_two_documents_of_one_key_are_an_error():
    async with scripted_mongos(c=[{"_id": 1, "at": 0}, {"_id": 1, "at": 1}]) as mongos:
        with pytest.raises(CommandError) as error:
            await found(reads(mongos), want({"_id": 1}), want({"_id": 2}))
    assert error.value.code == 280
    assert "found more than one document matching {_id: 1}" in error.value.message


async def test_a_read_that_found_a_former_primary_is_repeated_over_another_connection():
    async with scripted_mongos(c=[{"_id": 1}]) as mongos:
        source = reads(mongos)
        assert await found(source, want({"_id": 1})) == [{"_id": 1}]
        former = mongos.server.asked[-1].writer
        mongos.fail("find", 10107)
        assert await found(source, want({"_id": 1})) == [{"_id": 1}]
        assert mongos.server.asked[-1].writer is not former


async def test_an_unreachable_upstream_is_a_resumable_error():
    async with scripted_mongos(c=[{"_id": 1}]) as mongos:
        source = reads(mongos, failure_timeout=0.1)
    with pytest.raises(CommandError) as error:
        await found(source, want({"_id": 1}))
    assert error.value.code == 6
