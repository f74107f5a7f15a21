"""Snapshots: chunks of collections, read at a point of the stream, without Spark between."""

import itertools
import json
from dataclasses import replace
from typing import Any

import bson
import pytest
from bson import SON, Int64, ObjectId
from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect

from spark_sink.dataclass_json import to_document
from spark_sink.events.positions import AtTime, after
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import SnapshotOptions
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot import reader as snapshot_reader
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.document_events import DocumentEvents
from spark_sink.snapshot.plan import Chunk, SnapshotPlan
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.reader import ChunkRead, ChunkReader
from spark_sink.snapshot.selections import CollectionPatterns
from spark_sink.source.offsets import Offset
from spark_sink.stream.event_stream import EventStream, read_runs
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.ddl_events import ddl_event_of
from tests.harness.clusters import RealCluster, TestCluster, on_real_servers
from tests.spark.batches import batches
from tests.spark.conftest import DEPLOYMENTS, Shop
from tests.spark.tables import reshard

pytestmark = pytest.mark.xdist_group("spark_cluster")

IDENTIFIERS = [
    *range(150), *(f"n{number:03}" for number in range(20)), 0.5, float("nan"), None, True,
    Int64(2**40), Decimal128("1.5"), ObjectId("0123456789abcdef01234567"), Binary(b"\1\2", 5),
    SON(a=1, b="x"), Timestamp(5, 6),
]  # fmt: skip


def client(shop: Shop, **options: str) -> RouterClient:
    return RouterClient(parse_options(shop.options(**options)))


def planner(router: RouterClient, shop: Shop, rows: int | None, *collections: str) -> ChunkPlanner:
    options = SnapshotOptions(tasks=4, chunk_rows=rows)
    return ChunkPlanner(router.mongo, Scope(shop.database, collections), options)


def all_chunks(
    router: RouterClient, shop: Shop, rows: int | None, *collections: str
) -> list[Chunk]:
    """Return the chunks of a snapshot that is one batch."""
    planning = planner(router, shop, rows, *collections)
    tasks = planning.tasks(replace(planning.begin(Timestamp(1, 1)), end=None))
    return [chunk for task in tasks for chunk in task]


def read(
    router: RouterClient, chunk: Chunk, snapshot_time: Timestamp, **more: Any
) -> list[dict[str, Any]]:
    reader = ChunkReader(
        router.mongo,
        ChunkRead(chunk, snapshot_time, **more),
        lambda: router.clocks().cluster_time,
    )
    return [bson.decode(event) for run in reader.runs() for event in run.events]


@pytest.mark.parametrize("shop", DEPLOYMENTS, indirect=True)
def test_chunks_contain_every_document_once_for_all_types_of_ids(shop: Shop) -> None:
    shop.client[shop.database].things.insert_many([{"_id": each} for each in IDENTIFIERS])
    router = client(shop)
    snapshot_time = router.present()
    chunks = all_chunks(router, shop, 20, "things")
    parts = [read(router, chunk, snapshot_time) for chunk in chunks]
    router.close()
    found = sorted(repr(event["fullDocument"]["_id"]) for part in parts for event in part)
    written = bson.decode(bson.encode({"all": IDENTIFIERS}))["all"]
    assert found == sorted(map(repr, written))
    assert len(parts) >= 6
    assert max(map(len, parts)) < 80


def test_a_read_goes_on_in_the_order_of_all_types_where_one_has_failed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of a sharded collection may have more keys than the reader keeps."""
    # The embedded cluster orders these types among each other, and no more.
    things = [each for each in IDENTIFIERS if isinstance(each, int | str | float | ObjectId)]
    shop.client[shop.database].things.insert_many([{"_id": each} for each in things])
    shop.insert(120)
    monkeypatch.setattr(snapshot_reader, "_BATCH_SIZE_DOCUMENTS", 9)
    monkeypatch.setattr(snapshot_reader, "_MAX_KEYS", 40)
    run, calls = DocumentEvents.run, itertools.count()

    def failing(*given: Any) -> Any:
        if next(calls) % 2:
            raise AutoReconnect("lost")
        return run(*given)

    monkeypatch.setattr(DocumentEvents, "run", failing)
    router = client(shop)
    for name, written in (("things", things), ("orders", list(range(120)))):
        if name == "orders":  # read in no order, a chunk begins again
            monkeypatch.setattr(DocumentEvents, "run", run)
        [chunk] = all_chunks(router, shop, 1000, name)
        found = [event["fullDocument"]["_id"] for event in read(router, chunk, Timestamp(100, 1))]
        assert sorted(map(repr, found)) == sorted(
            map(repr, bson.decode(bson.encode({"all": written}))["all"])
        )
    router.close()


def test_rows_are_events_of_the_snapshot_time(shop: Shop) -> None:
    shop.insert(12)
    router = client(shop)
    snapshot_time = router.present()
    [chunk] = all_chunks(router, shop, 100, "orders")
    events = read(router, chunk, snapshot_time, condition={"customer": {"$lt": 3}})
    router.close()
    keys = sorted((event["documentKey"] for event in events), key=lambda key: key["_id"])
    assert keys == [{"customer": number % 10, "_id": number} for number in (0, 1, 2, 10, 11)]
    assert {event["clusterTime"] for event in events} == {snapshot_time}
    assert {event["operationType"] for event in events} == {"read"}
    assert events[0]["ns"] == {"db": shop.database, "coll": "orders"}
    with shop.orders.watch(start_after=events[0]["_id"]) as watch:
        shop.insert(1)
        assert watch.next()["documentKey"] == {"customer": 2, "_id": 12}


@pytest.mark.parametrize("shop", DEPLOYMENTS, indirect=True)
def test_a_plan_is_restored_from_an_offset_and_ends_after_all_collections(shop: Shop) -> None:
    database = shop.client[shop.database]
    shop.insert(100)
    database.small.insert_one({"_id": 1})
    database.create_collection("empty")
    router = client(shop)
    planning = planner(router, shop, 10)
    plan: SnapshotPlan | None = planning.begin(router.present())
    found, tasks = [], 0
    while plan is not None and not (plan := planning.next_batch(plan)).ended:
        request = SnapshotRequest("i", "initial", plan=plan)
        written = Offset(plan.handover, snapshots=SnapshotQueue(requests=(request,))).document
        plan = Offset.of(json.loads(json.dumps(written))).snapshots.initial_plan
        assert plan is not None
        batch = planner(router, shop, 10).tasks(plan)  # as after a restart
        assert len(batch) <= 5
        tasks += len(planning.tasks(plan))
        for chunk in (chunk for task in batch for chunk in task):
            read_now = read(router, chunk, plan.snapshot_time)
            found += [(chunk.collection.name, each["documentKey"]["_id"]) for each in read_now]
    router.close()
    assert sorted(found) == [*(("orders", number) for number in range(100)), ("small", 1)]
    assert plan is not None
    assert to_document(plan.progress) == {
        "collections": 3, "collectionsPlanned": 3, "chunksPlanned": tasks, "rowsPlanned": 101,
    }  # fmt: skip
    assert tasks >= 10


@pytest.mark.parametrize("shop", DEPLOYMENTS, indirect=True)
def test_a_renamed_collection_is_read_under_its_new_name_and_a_dropped_one_is_not(
    shop: Shop,
) -> None:
    database = shop.client[shop.database]
    for name in ("kept", "gone"):
        database[name].insert_many([{"_id": number} for number in range(3)])
    router = client(shop)
    snapshot_time = router.present()
    chunks = all_chunks(router, shop, 100, "kept", "gone")
    gone, kept = sorted(chunks, key=lambda chunk: chunk.collection.name)
    database.kept.rename("moved")
    database.gone.drop()
    assert [event["ns"]["coll"] for event in read(router, kept, snapshot_time)] == ["moved"] * 3
    assert read(router, gone, snapshot_time) == []
    router.close()


@on_real_servers("reshardCollection")
@pytest.mark.parametrize("restarts", [False, True])
def test_a_collection_that_gets_another_uuid_is_read_to_its_end(
    shop: Shop, cluster: TestCluster, restarts: bool
) -> None:
    """It gets the UUID after the first batch, and the UUID may sort before what was read."""
    shop.insert(100)
    database = shop.client[shop.database]
    database.plain.insert_many([{"_id": number} for number in range(100)])
    router = client(shop)
    for name in ("orders", "plain"):
        planning = planner(router, shop, 10, name)
        plan = planning.next_batch(planning.begin(router.present()))
        found, number = set[int](), 0
        while not plan.ended:
            for chunk in (chunk for task in planning.tasks(plan) for chunk in task):
                rows = read(router, chunk, plan.snapshot_time)
                found |= {row["documentKey"]["_id"] for row in rows}
            if not number and name == "orders":
                assert isinstance(cluster, RealCluster)
                reshard(cluster, shop, {"text": 1, "_id": 1})
            elif not number:
                other = sorted(cluster.shards)[1]
                shop.client.admin.command("movePrimary", shop.database, to=other)
            number += 1
            if restarts and name == "orders":  # movePrimary has an event of the drop
                planning = planner(router, shop, 10, name)
            plan = planning.next_batch(plan)
        assert found == set(range(100))
        assert number > 2
    router.close()


def test_a_later_snapshot_of_a_query_knows_new_names_and_shard_keys(shop: Shop) -> None:
    database = shop.client[shop.database]
    database.plain.insert_many([{"_id": number} for number in range(3)])
    router = client(shop)
    planning = planner(router, shop, 10)
    assert planning.begin(router.present(), CollectionPatterns((f"{shop.database}.plain",)))
    database.plain.rename("other")
    shop.client.admin.command("shardCollection", f"{shop.database}.other", key={"_id": 1})
    chosen = CollectionPatterns((f"{shop.database}.other",))
    plan = planning.begin(router.present(), chosen)
    [[chunk]] = planning.tasks(planning.next_batch(plan, chosen), chosen)
    assert (chunk.collection.name, chunk.collection.key) == ("other", ("_id",))
    router.close()


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({"collection.include.list": r".*\.(a|c)"}, ["a", "b to a", "c"]),
        ({"collection.exclude.list": r".*\.(a|c)"}, ["b", "b to a"]),
        ({"database.exclude.list": "shop.*"}, []),
        ({"database.exclude.list": "SHOP.*"}, []),
        (
            {"database.exclude.list": "shop", "filters.match.mode": "literal"},
            ["a", "b", "b to a", "c"],
        ),
        ({"collection.include.list": r"\p{Lower}+.*\.\Qa\E"}, ["a", "b to a"]),
        ({"collection.include.list": r".*", "skipped.operations": "c"}, ["b to a"]),
    ],
)
def test_the_servers_filter_by_debeziums_lists(shop: Shop, lists, expected) -> None:
    database = shop.client[shop.database]
    for name in ("a", "b", "c"):
        database[name].insert_one({"_id": name})
    database.drop_collection("a")
    database.b.rename("a")
    router = client(shop, **lists)
    stream = router.watch_events(AtTime(shop.created))
    end = after(router.present())
    runs = read_runs(EventStream(lambda _: stream, AtTime(shop.created)), end)
    events = [bson.decode(event) for run in runs for event in run.events]
    found = [event["ns"]["coll"] for event in events if event["operationType"] == "insert"]
    renamed = [event for event in events if event["operationType"] == "rename"]
    found += [f"{event['ns']['coll']} to {event['to']['coll']}" for event in renamed]
    stream.close()
    router.close()
    assert sorted(found) == expected


def test_a_snapshot_reads_the_collections_of_its_list_alone(shop: Shop) -> None:
    database = shop.client[shop.database]
    for name in ("large", "larger", "small"):
        database[name].insert_one({"_id": 1})
    listed = rf"{shop.database}\.large, {shop.database}\.sm.*"
    options = {"snapshot.mode": "initial", "snapshot.include.collection.list": listed}
    with batches(shop.options(**options)) as query:
        query.until(lambda: "snapshotEnd" in query.kinds(), "the snapshot")
        read = sorted(row["collection"] for row in query.rows if row["op"] == "r")
        assert read == ["large", "small"]
        end = ddl_event_of(query.ends[0])
        assert end.result(shop.database, "small") is None
        assert end.result(shop.database, "larger") == (shop.database, "larger")
        database.larger.insert_one({"_id": 2})
        query.until(lambda: "insert" in query.kinds(), "the event")
        assert query.rows[-1]["collection"] == "larger"
