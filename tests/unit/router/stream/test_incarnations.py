"""A part of a wider stream gives a client what its own stream would give it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

import bson
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from router.filters.stream_filter import EVERYTHING, StreamFilter, compile_filter
from router.request.stream_request import StreamRequest, parse_request
from router.stream.views import made_up_invalidate
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import event_key, token_of
from tests.doubles.narrowed import PartOfStream
from tests.doubles.scripted_streams import Driver, Event, PrivateStream, Script, hwm
from tests.unit.router.made_tokens import data_of, event

START = Timestamp(10, 1)
END = hwm(1000)
SHARDS = ("shard0", "shard1", "shard2")
HOSTS = {shard: f"{shard}/h:1" for shard in SHARDS}
OTHER = "5A1004" + "22" * 16


def request(target: str | int, *stages: Mapping[str, Any], database: str = "db") -> StreamRequest:
    options = {"allChangesForCluster": True} if database == "admin" else {}
    pipeline = [{"$changeStream": options}, *stages]
    return parse_request(database, {"aggregate": target, "pipeline": pipeline, "cursor": {}})


def of_namespace(time: int, number: int, database: str, collection: str) -> Event:
    namespace = {"db": database, "coll": collection}
    return event(data_of(time, number), ns=namespace, documentKey={"_id": number})


def command(
    time: int, operation: str, database: str, collection: str | None, uuid: str, **fields: Any
) -> Event:
    data = data_of(time, 0, uuid=uuid)
    namespace = {"db": database} | ({} if collection is None else {"coll": collection})
    known = {"clusterTime": Timestamp(time, 1), "wallTime": None}
    return event(data, **{**known, "operationType": operation, "ns": namespace, **fields})


def belongs(raw: bytes, database: str, collection: str | None) -> bool:
    decoded = bson.decode(raw)
    if decoded["ns"]["db"] != database:
        return False
    if collection is None:
        return True
    return collection in (decoded["ns"].get("coll"), decoded.get("to", {}).get("coll"))


def own_script(
    wide: list[Event], database: str, collection: str | None, let_through: Callable[[bytes], bool]
) -> Script:
    """Return a shard's own stream of a namespace, as its server would make it."""
    ending = {"drop", "rename", "dropDatabase"} if collection else {"dropDatabase"}
    found: list[Event] = []
    for key, raw in wide:
        if not belongs(raw, database, collection):
            continue
        operation = bson.decode(raw)["operationType"]
        if collection and operation == "dropDatabase":
            continue
        if let_through(raw):
            found.append((key, raw))
        if operation in ending:
            last = made_up_invalidate(raw)
            if let_through(last):
                found.append((event_key(last), last))
            return Script(found, token_of(last), invalidated=True)
    return Script(found, END)


@st.composite
def oplogs(draw: st.DrawFn) -> dict[str, list[Event]]:
    """Return each shard's events of the cluster; definitions often have equal times."""
    rnd = Random(draw(st.integers(0, 1 << 32)))
    shards: dict[str, list[Event]] = {shard: [] for shard in SHARDS}
    uuids = {"a": "5A1004" + "11" * 16, "b": OTHER}
    ends = draw(st.integers(0, 3))
    for shard in SHARDS:
        for time in sorted(rnd.sample(range(11, 60), rnd.randrange(15))):
            database, collection = rnd.choice(("db", "db", "other")), rnd.choice("ab")
            shards[shard].append(of_namespace(time, rnd.randrange(1, 60), database, collection))
    for _ in range(ends):
        kind = rnd.choice(("drop", "rename", "dropDatabase"))
        collection = rnd.choice("ab")
        at = rnd.randrange(11, 60)
        for shard in SHARDS:
            if rnd.random() < 0.3:
                continue
            time = at if rnd.random() < 0.7 else rnd.randrange(11, 60)
            uuid = rnd.choice(list(uuids.values()))
            if kind == "dropDatabase":
                shards[shard].append(command(time, kind, "db", None, ""))
            elif kind == "drop":
                shards[shard].append(command(time, kind, "db", collection, uuid))
            else:
                to = {"db": "db", "coll": rnd.choice(("a", "z"))}
                shards[shard].append(command(time, kind, "db", "b", uuid, to=to))
    for found in shards.values():
        # One entry for each time, as in an oplog.
        by_time = {bytes(key[:18]): (key, raw) for key, raw in found}
        found[:] = [by_time[key] for key in sorted(by_time)]
    return shards


def private(narrow: StreamRequest) -> PrivateStream:
    return PrivateStream(narrow, HOSTS, start_at=START, topology_from=START)


def part(wide: StreamRequest, narrow: StreamRequest, stream_filter: StreamFilter) -> PartOfStream:
    return PartOfStream(
        wide,
        narrow,
        HOSTS,
        start_at=START,
        topology_from=START,
        stream_filter=stream_filter,
    )


MATCH = {"$match": {"operationType": {"$in": ["insert", "drop"]}}}


@settings(max_examples=300, deadline=None)
@given(
    oplogs=oplogs(),
    scope=st.sampled_from(["a from db", "a from cluster", "db from cluster"]),
    filtered=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_a_part_has_the_events_and_the_end_of_an_own_stream(
    oplogs: dict[str, list[Event]], scope: str, filtered: bool, seed: int
) -> None:
    name, _, wider = scope.partition(" from ")
    target = "a" if name == "a" else 1
    collection = "a" if name == "a" else None
    stages = (MATCH,) if filtered else ()
    narrow = request(target, *stages)
    kinds = MATCH["$match"]["operationType"]["$in"]
    own = {
        shard: own_script(
            events,
            "db",
            collection,
            lambda raw: not filtered or bson.decode(raw)["operationType"] in kinds,
        )
        for shard, events in oplogs.items()
    }
    in_database = {
        shard: own_script(events, "db", None, lambda raw: True) for shard, events in oplogs.items()
    }
    of_cluster = {shard: Script(events, END) for shard, events in oplogs.items()}
    config = {"config": Script([], END)}
    expected = Driver(private(narrow), {**own, **config}, Random(seed)).run()

    wide = request(1) if wider == "db" else request(1, database="admin")
    scripts = in_database if wider == "db" else of_cluster
    stream_filter = compile_filter(stages) if stages else EVERYTHING
    stream = part(wide, narrow, stream_filter)
    driver = Driver(stream, {**scripts, **config}, Random(seed + 1))
    with suppress(CommandError):
        driver.run()
    if stream.part.wider_stream_ended:
        # The database's stream has ended, and the client goes on with its own.
        assert wider == "db"
        assert driver.events == expected.events[: len(driver.events)]
        reached = stream.log_reader.needs
        assert all(event_key(raw) > reached for raw in expected.events[len(driver.events) :])
        return
    assert driver.events == expected.events
    assert driver.taken[-1].closed == expected.taken[-1].closed
    if expected.taken[-1].closed:
        assert driver.taken[-1].pbrt == expected.taken[-1].pbrt
