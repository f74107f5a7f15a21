"""updateLookup through the router finds each event's document wherever it is now.

On real servers, every stream is also read through mongos, which must return the same bytes.
"""

import itertools
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import bson
import pymongo
import pytest
from bson import Timestamp, json_util
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.routers import RouterProcess, start_router

Event = dict[str, Any]
Data = Database[dict[str, Any]]

LOOKUP = {"fullDocument": "updateLookup"}
IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}
_RAW: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument)
_PATIENCE = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(2, noop_interval=1) as running:
        yield running


@pytest.fixture(scope="module")
def mongos(cluster: TestCluster) -> Iterator[Client]:
    client: Client
    with pymongo.MongoClient(cluster.mongos_uri) as client:
        yield client


@pytest.fixture(scope="module")
def process(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(cluster.configdb, cluster.mongos_uri, feed=True) as running:
        yield running


@pytest.fixture(scope="module")
def router(process: RouterProcess) -> Iterator[Client]:
    client: Client
    with pymongo.MongoClient(process.uri) as client:
        yield client


_names = itertools.count(1)


@pytest.fixture
def db(mongos: Client, cluster: TestCluster) -> Iterator[Data]:
    """Return a new database whose primary is the first shard."""
    database = mongos[f"lookups{next(_names)}"]
    first = next(iter(cluster.shards))
    mongos.admin.command("enableSharding", database.name, primaryShard=first)
    yield database
    mongos.drop_database(database.name)


def tick(client: Client) -> Timestamp:
    """Return a cluster time after all changes so far."""
    time = client.admin.command("ping")["$clusterTime"]["clusterTime"]
    return Timestamp(time.time, time.inc + 1)


def drain(
    client: Client, command: Mapping[str, Any], database: str, past: Timestamp
) -> list[bytes]:
    """Read a stream until its token has passed a time; return the raw events."""
    events: list[bytes] = []
    deadline = time.monotonic() + _PATIENCE
    with client.start_session() as session:
        reply = client[database].command(dict(command), session=session, codec_options=_RAW)
        name = command["aggregate"] if command["aggregate"] != 1 else "$cmd.aggregate"
        while True:
            cursor = reply["cursor"]
            batch = cursor["firstBatch"] if "firstBatch" in cursor else cursor["nextBatch"]
            events += [bytes(event.raw) for event in batch]
            data = cursor["postBatchResumeToken"]["_data"]
            if Timestamp(int(data[2:10], 16), int(data[10:18], 16)) > past or not cursor["id"]:
                break
            assert time.monotonic() < deadline, f"still reading after {len(events)} events"
            more = {"getMore": cursor["id"], "collection": name, "maxTimeMS": 100}
            more |= {k: v for k, v in command["cursor"].items() if k == "batchSize"}
            reply = client[database].command(more, session=session, codec_options=_RAW)
        if cursor["id"]:
            kill = {"killCursors": name, "cursors": [cursor["id"]]}
            client[database].command(kill, session=session)
    return events


class Both:
    """Reads streams through the router and, on real servers, through mongos as well.

    ``clients`` holds a client of the router and, on real servers, one of the mongos.
    """

    def __init__(self, cluster: TestCluster, router: Client, mongos: Client) -> None:
        self.clients = (router, mongos) if cluster.real else (router,)
        self._mongos = mongos

    def read(
        self,
        database: str,
        target: str | int = 1,
        *,
        options: Mapping[str, Any] = LOOKUP,
        stages: Sequence[Mapping[str, Any]] = (),
        **fields: Any,
    ) -> list[Event]:
        """Read all events since the start given in ``options``; both sides must agree."""
        command = {
            "aggregate": target,
            "pipeline": [{"$changeStream": dict(options)}, *stages],
            "cursor": {},
            **fields,
        }
        past = tick(self._mongos)
        events, *others = (drain(client, command, database, past) for client in self.clients)
        assert all(other == events for other in others)
        return [bson.decode(event) for event in events]


@pytest.fixture
def both(cluster: TestCluster, router: Client, mongos: Client) -> Both:
    return Both(cluster, router, mongos)


def updates(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["operationType"] == "update"]


def documents(events: Sequence[Event]) -> list[Any]:
    return [event["fullDocument"] for event in updates(events)]


def spread(db: Data, cluster: TestCluster, name: str = "a", key: str = "k") -> None:
    """Shard a collection by ``k``: below 10 on the first shard, the rest on the second."""
    namespace = f"{db.name}.{name}"
    admin = db.client.admin
    admin.command("shardCollection", namespace, key={key: 1})
    admin.command("split", namespace, middle={key: 10})
    move(db, cluster, {key: 10}, 1, name)


def move(db: Data, cluster: TestCluster, key: Mapping[str, Any], to: int, name: str = "a") -> None:
    shard = list(cluster.shards)[to]
    db.client.admin.command("moveChunk", f"{db.name}.{name}", find=dict(key), to=shard)


def since(start: Timestamp, **options: Any) -> dict[str, Any]:
    return {**LOOKUP, "startAtOperationTime": start, **options}


def test_a_moved_document_is_found(both: Both, db: Data, cluster: TestCluster) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for k in (1, 11):
        db.a.insert_one({"_id": k, "k": k})
        db.a.update_one({"_id": k, "k": k}, {"$set": {"v": 1}})
    move(db, cluster, {"k": 1}, 1)
    move(db, cluster, {"k": 11}, 0)
    db.a.update_one({"_id": 1, "k": 1}, {"$set": {"v": 2}})
    now = [{"_id": 1, "k": 1, "v": 2}, {"_id": 11, "k": 11, "v": 1}]
    for target in ("a", 1):
        events = both.read(db.name, target, options=since(start))
        assert documents(events) == [*now, now[0]]


def test_an_orphan_is_not_returned(both: Both, db: Data, cluster: TestCluster) -> None:
    if not cluster.real:
        pytest.skip("embedded shards clean up at once")
    spread(db, cluster)
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "k": 1})
    db.a.update_one({"_id": 1, "k": 1}, {"$set": {"v": 1}})
    with kept_orphans(cluster):
        move(db, cluster, {"k": 1}, 1)
        db.a.update_one({"_id": 1, "k": 1}, {"$set": {"v": 2}})
        events = both.read(db.name, "a", options=since(start))
        with cluster.direct(next(iter(cluster.shards))) as donor:
            orphan = donor[db.name].a.find_one({"_id": 1})
    assert orphan == {"_id": 1, "k": 1, "v": 1}
    assert documents(events) == [{"_id": 1, "k": 1, "v": 2}] * 2


@contextmanager
def kept_orphans(cluster: TestCluster) -> Iterator[None]:
    with cluster.direct(next(iter(cluster.shards))) as donor:
        point = {"configureFailPoint": "suspendRangeDeletion"}
        donor.admin.command({**point, "mode": "alwaysOn"})
        try:
            yield
        finally:
            donor.admin.command({**point, "mode": "off"})


def test_a_deleted_document_is_null(both: Both, db: Data, cluster: TestCluster) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for k in range(8, 13):
        db.a.insert_one({"_id": k, "k": k})
        db.a.update_one({"_id": k, "k": k}, {"$set": {"v": 1}})
    db.a.delete_many({"k": {"$in": [8, 12]}})
    found = documents(both.read(db.name, "a", options=since(start)))
    assert found == [None, *({"_id": k, "k": k, "v": 1} for k in (9, 10, 11)), None]


@pytest.mark.parametrize(
    "key",
    [{"_id": "hashed"}, {"k": "hashed"}, {"k": 1, "l": 1}, {"n.k": 1}, {"_id": 1}, None],
    ids=str,
)
def test_lookups_work_with_shard_keys_of_all_kinds(
    both: Both, db: Data, key: Mapping[str, Any] | None
) -> None:
    if key is not None:
        db.client.admin.command("shardCollection", f"{db.name}.a", key=dict(key))
    start = tick(db.client)
    stored = [{"_id": n, "k": n, "l": -n, "n": {"k": n}} for n in range(12)]
    db.a.insert_many(stored)
    for n in range(12):
        whole = {"_id": n, "k": n, "l": -n, "n.k": n}
        for v in range(3):
            db.a.update_one(whole, {"$set": {"v": v}})
    db.a.delete_one({"_id": 5, "k": 5, "l": -5, "n.k": 5})
    now = [None if n == 5 else {**stored[n], "v": 2} for n in range(12)]
    assert documents(both.read(db.name, "a", options=since(start))) == [
        document for document in now for _ in range(3)
    ]


def test_lookups_work_with_ids_of_all_types(both: Both, db: Data, cluster: TestCluster) -> None:
    """Servers treat 1, 1.0 and NumberLong(1) as one _id, and compare texts by collation."""
    ids: list[Any] = [
        1, 2.0, bson.Int64(3), bson.Decimal128("4"), "a", "B", bson.ObjectId(), None, True,
        {"x": 1, "y": [1.0, "z"]}, bson.Binary(b"x"), bson.Timestamp(1, 1), bson.MaxKey(),
    ]  # fmt: skip
    folding = {"locale": "en", "strength": 2}
    db.create_collection("a", collation=folding)
    start = tick(db.client)
    for each in ids:
        db.a.insert_one({"_id": each})
        db.a.update_one({"_id": each}, {"$set": {"v": 1}})
    for old, new in ((1, 1.0), ("a", "A"), (bson.Int64(3), 3)):
        db.a.delete_one({"_id": old})
        db.a.insert_one({"_id": new, "new": True})
    db.a.delete_one({"_id": 2})
    found = documents(both.read(db.name, "a", options=since(start)))
    if cluster.real:
        # The embedded cluster's finds ignore a collection's collation.
        assert found[4] == {"_id": "A", "new": True}
    assert found[:4] == [
        {"_id": 1.0, "new": True},
        None,
        {"_id": 3, "new": True},
        {"_id": bson.Decimal128("4"), "v": 1},
    ]
    assert [type(each["_id"]) for each in (found[0], found[2])] == [float, int]
    assert all(each["v"] == 1 for each in found[5:])


def test_equal_ids_on_several_shards_are_distinguished(
    both: Both, db: Data, cluster: TestCluster
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for k in (1, 11):
        db.a.insert_one({"_id": "x", "k": k})
        db.a.update_one({"_id": "x", "k": k}, {"$set": {"v": k}})
    found = documents(both.read(db.name, "a", options=since(start)))
    assert found == [{"_id": "x", "k": k, "v": k} for k in (1, 11)]


def test_a_changed_shard_key_identifies_another_document(
    both: Both, db: Data, cluster: TestCluster
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for n in (1, 2):
        db.a.insert_one({"_id": n, "k": n})
        db.a.update_one({"_id": n, "k": n}, {"$set": {"v": 1}})
    with db.client.start_session() as session, session.start_transaction():
        db.a.update_one({"_id": 1, "k": 1}, {"$set": {"k": 15}}, session=session)
    found = documents(both.read(db.name, "a", options=since(start)))
    assert found == [None, {"_id": 2, "k": 2, "v": 1}]


def test_documents_of_a_recreated_collection_are_not_returned(both: Both, db: Data) -> None:
    start = tick(db.client)
    for name in ("a", "b"):
        db[name].insert_one({"_id": 1})
        db[name].update_one({"_id": 1}, {"$set": {"v": 1}})
    db.a.drop()
    db.a.insert_one({"_id": 1, "other": True})
    db.b.rename("c")
    assert documents(both.read(db.name, options=since(start))) == [None, None]


def test_transactions_updates_are_looked_up(both: Both, db: Data, cluster: TestCluster) -> None:
    spread(db, cluster)
    db.a.insert_many([{"_id": k, "k": k} for k in (1, 2, 11, 12)])
    db.b.insert_one({"_id": 1})
    start = tick(db.client)
    with db.client.start_session() as session, session.start_transaction():
        for v in range(2):
            for k in (1, 2, 11, 12):
                db.a.update_one({"_id": k, "k": k}, {"$set": {"v": v}}, session=session)
        db.b.update_one({"_id": 1}, {"$set": {"v": 1}}, session=session)
    events = both.read(db.name, options=since(start))
    assert len(updates(events)) == 9
    assert all("lsid" in event and "txnNumber" in event for event in events)
    for event in updates(events):
        assert event["fullDocument"]["_id"] == event["documentKey"]["_id"]
        assert event["fullDocument"]["v"] == 1


MATCH_DOCUMENT = {"$match": {"fullDocument.v": {"$gt": 2}}}


@pytest.mark.parametrize(
    "stages",
    [
        [MATCH_DOCUMENT],
        [{"$match": {"operationType": "update", "fullDocument.v": {"$gt": 2}}}],
        [{"$match": {"operationType": "update"}}, {"$project": {"fullDocument": 1, "ns": 1}}],
        [{"$match": {"$or": [{"operationType": "insert"}, {"fullDocument": None}]}}],
        [{"$match": {"$expr": {"$eq": ["$fullDocument.v", "$$wanted"]}}}],
        [{"$project": {"v": "$fullDocument.v"}}, {"$match": {"v": {"$exists": True}}}],
        [{"$unset": ["updateDescription", "wallTime"]}],
        [{"$replaceWith": {"_id": "$_id", "document": "$fullDocument"}}],
        [
            {"$match": {"operationType": {"$ne": "delete"}}},
            {"$addFields": {"fullDocument.extra": "$documentKey"}},
        ],
        [{"$redact": {"$cond": [{"$eq": ["$operationType", "delete"]}, "$$PRUNE", "$$KEEP"]}}],
        [{"$match": {"fullDocument.name": "NAME 3"}}],
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_stages_run_after_the_lookup(
    both: Both,
    db: Data,
    cluster: TestCluster,
    stages: list[dict[str, Any]],
    batch_size: int | None,
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for k in range(6, 14):
        db.a.insert_one({"_id": k, "k": k, "name": f"Name {k % 4}"})
        db.a.update_one({"_id": k, "k": k}, {"$set": {"v": k % 5}})
    db.a.delete_one({"_id": 9, "k": 9})
    cursor = {} if batch_size is None else {"batchSize": batch_size}
    fields: dict[str, Any] = {"cursor": cursor, "let": {"wanted": 3}}
    if "name" in str(stages):
        fields["collation"] = {"locale": "en", "strength": 2}
    events = both.read(db.name, "a", options=since(start), stages=stages, **fields)
    assert events
    assert len(events) < 17 or stages[0].keys() & {"$unset", "$replaceWith"}


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$match": {"fullDocument.v": {"$unknown": 1}}}, 2),
        ({"$match": {"operationType": {"$unknown": 1}}}, 2),
        ({"$unset": 1}, 31002),
        ({"$project": {}}, 51272),
        ({"$match": {"$expr": {"$eq": ["$fullDocument.v", "$$unknown"]}}}, 17276),
    ],
    ids=str,
)
def test_an_invalid_stage_fails_the_opening(
    both: Both, db: Data, cluster: TestCluster, stage: dict[str, Any], code: int
) -> None:
    if not cluster.real and code in (17276, 51272):
        pytest.skip("the embedded cluster does not check this")
    for client in both.clients:
        with pytest.raises(OperationFailure) as error:
            client[db.name].a.watch([stage], "updateLookup")
        assert error.value.code == code


@pytest.mark.parametrize(
    "stage", [{"$project": {"_id": 0}}, {"$replaceWith": "$fullDocument"}], ids=str
)
def test_stages_must_not_change_the_token(
    both: Both, db: Data, cluster: TestCluster, stage: dict[str, Any]
) -> None:
    start = tick(db.client)
    db.a.insert_one({"_id": 1})
    db.a.update_one({"_id": 1}, {"$set": {"v": 1}})
    for client in both.clients:
        stream = client[db.name].a.watch([stage], "updateLookup", start_at_operation_time=start)
        with stream, pytest.raises(OperationFailure) as error:
            next(stream)
        assert error.value.code == 280
        assert error.value.has_error_label("NonResumableChangeStreamError")


@pytest.mark.parametrize(
    "options",
    [
        {"showExpandedEvents": True},
        {"fullDocumentBeforeChange": "whenAvailable"},
        {"fullDocumentBeforeChange": "required", "showExpandedEvents": True},
        {"showRawUpdateDescription": True},
    ],
    ids=str,
)
def test_lookups_combine_with_other_options(both: Both, db: Data, options: dict[str, Any]) -> None:
    start = tick(db.client)
    db.create_collection("a", **IMAGES)
    db.a.insert_one({"_id": 1})
    db.a.update_one({"_id": 1}, {"$set": {"v": 1}})
    db.a.update_one({"_id": 1}, {"$set": {"v": 2}, "$unset": {"x": 1}})
    events = both.read(db.name, "a", options=since(start, **options))
    assert documents(events) == [{"_id": 1, "v": 2}] * 2
    if "fullDocumentBeforeChange" in options:
        before = [event["fullDocumentBeforeChange"] for event in updates(events)]
        assert before == [{"_id": 1}, {"_id": 1, "v": 1}]


def test_a_stream_resumes_after_an_event_with_a_lookup(
    both: Both, db: Data, cluster: TestCluster
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for k in range(8, 12):
        db.a.insert_one({"_id": k, "k": k})
        db.a.update_one({"_id": k, "k": k}, {"$set": {"v": 1}})
    stages = [{"$project": {"fullDocument": 1, "operationType": 1}}]
    events = both.read(db.name, "a", options=since(start), stages=stages)
    assert len(events) == 8
    for place in range(8):
        options = {**LOOKUP, "resumeAfter": events[place]["_id"]}
        assert both.read(db.name, "a", options=options, stages=stages) == events[place + 1 :]


def test_large_documents_are_split_into_several_replies(
    both: Both, db: Data, cluster: TestCluster
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for k in range(8):
        db.a.insert_one({"_id": k, "k": k + 6, "x": "a" * 3_000_000})
        for v in range(3):
            db.a.update_one({"_id": k, "k": k + 6}, {"$set": {"v": v}})
    stages = [{"$match": {"operationType": "update"}}, {"$addFields": {"y": 1}}]
    for chosen in (stages[:1], stages):
        events = both.read(db.name, "a", options=since(start), stages=chosen)
        assert [(each["fullDocument"]["_id"], each["fullDocument"]["v"]) for each in events] == [
            (k, 2) for k in range(8) for _ in range(3)
        ]


SPLIT = {"$changeStreamSplitLargeEvent": {}}
_NINE_MB = 9_000_000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("images", [False, True], ids=["", "images"])
def test_large_events_are_split_after_the_lookup(
    both: Both, db: Data, cluster: TestCluster, images: bool
) -> None:
    """With images, the shards already split events that the lookup enlarges further."""
    spread(db, cluster)
    options: dict[str, Any] = {}
    if images:
        db.command("collMod", "a", **IMAGES)
        options["fullDocumentBeforeChange"] = "whenAvailable"
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "k": 1, "x": "a" * _NINE_MB})
    db.a.update_one({"_id": 1, "k": 1}, {"$set": {"x": "b" * _NINE_MB}})
    db.a.insert_one({"_id": 11, "k": 11})
    db.a.update_one({"_id": 11, "k": 11}, {"$set": {"v": 1}})
    move(db, cluster, {"k": 1}, 1)
    events = both.read(db.name, "a", options=since(start, **options), stages=[SPLIT])
    parts = [event for event in events if "splitEvent" in event]
    assert [part["splitEvent"]["of"] for part in parts] == [2 + images] * (2 + images)
    joined = {name: value for part in parts for name, value in part.items()}
    assert joined["fullDocument"]["x"] == "b" * _NINE_MB
    assert joined["operationType"] == "update"
    assert events[-1]["fullDocument"] == {"_id": 11, "k": 11, "v": 1}
    for place, event in enumerate(events):
        if "splitEvent" in event:
            options["resumeAfter"] = event["_id"]
            rest = both.read(db.name, "a", options={**LOOKUP, **options}, stages=[SPLIT])
            assert rest == events[place + 1 :]


def test_a_fragment_of_an_event_that_is_now_small_is_not_found(
    both: Both, db: Data, cluster: TestCluster
) -> None:
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "x": "a" * _NINE_MB})
    db.a.update_one({"_id": 1}, {"$set": {"x": "b" * _NINE_MB}})
    events = both.read(db.name, "a", options=since(start), stages=[SPLIT])
    db.a.delete_one({"_id": 1})
    for part in events[1:]:
        options = {**LOOKUP, "resumeAfter": part["_id"]}
        command = {"aggregate": "a", "pipeline": [{"$changeStream": options}, SPLIT], "cursor": {}}
        for client in both.clients:
            with pytest.raises(OperationFailure) as error:
                drain(client, command, db.name, tick(db.client))
            assert error.value.code == 280
            assert "was not large enough to be split" in str(error.value)


def test_a_large_event_fails_without_splitting(both: Both, db: Data) -> None:
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "x": "a" * _NINE_MB})
    db.a.update_one({"_id": 1}, {"$set": {"x": "b" * _NINE_MB}})
    command = {"aggregate": "a", "pipeline": [{"$changeStream": since(start)}], "cursor": {}}
    for client in both.clients:
        with pytest.raises(OperationFailure) as error:
            drain(client, command, db.name, tick(db.client))
        assert error.value.code == 10334
        assert "Size must be between 0 and 16793600(16MB)" in str(error.value)


def test_the_feed_includes_the_documents(
    process: RouterProcess, db: Data, cluster: TestCluster
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "k": 1})
    db.a.update_one({"_id": 1, "k": 1}, {"$set": {"v": 1}})
    move(db, cluster, {"k": 1}, 1)
    wanted = {"database": db.name, "collection": "a", **since(start)}
    assert process.feed_port is not None
    with socket.create_connection(("127.0.0.1", process.feed_port), timeout=_PATIENCE) as feed:
        feed.sendall(json_util.dumps(wanted).encode() + b"\n")
        with feed.makefile() as lines:
            events = [json_util.loads(next(lines)) for _ in range(2)]
    assert documents(events) == [{"_id": 1, "k": 1, "v": 1}]


def test_explain_shows_the_lookup_after_the_merge(router: Client, db: Data) -> None:
    command = {
        "aggregate": "a",
        "pipeline": [
            {"$changeStream": LOOKUP},
            {"$match": {"operationType": "update", "fullDocument.v": 1}},
        ],
        "cursor": {},
    }
    shown = router[db.name].command("explain", command, verbosity="queryPlanner")
    parts = shown["splitPipeline"]
    assert parts["shardsPart"][1:] == [{"$match": {"operationType": "update"}}]
    assert "fullDocument" not in parts["shardsPart"][0]["$changeStream"]
    assert parts["mergerPart"][-2]["$changeStream"]["fullDocument"] == "updateLookup"
    assert parts["mergerPart"][-1] == {"$match": {"fullDocument.v": 1}}


def test_drivers_get_the_documents(router: Client, db: Data, cluster: TestCluster) -> None:
    """A waiting reader gets every document while chunks move back and forth."""
    spread(db, cluster)
    db.a.insert_many([{"_id": k, "k": k} for k in range(20)])
    with router[db.name].a.watch(full_document="updateLookup") as stream:
        for v in range(4):
            move(db, cluster, {"k": 1}, (v + 1) % 2)
            for k in range(20):
                db.a.update_one({"_id": k, "k": k}, {"$set": {"v": v}})
            events = [next(stream) for _ in range(20)]
            assert sorted(event["fullDocument"]["_id"] for event in events) == list(range(20))
            assert all(event["fullDocument"]["v"] == v for event in events)
