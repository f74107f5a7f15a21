"""Events beyond those of the recorded workload (docs/protocol.md#events).

tests/recordings/test_workload.py has the plain ones, byte for byte.
"""

from typing import Any

from bson import Binary
from pymongo.client_session import ClientSession
from pymongo.database import Database

from tests.conformance.data import Documents
from tests.conformance.streams import CLUSTER, Stream, kinds, next_tick, now, opening, refused
from tests.harness.clusters import Client, TestCluster, on_real_servers

Data = Database[dict[str, Any]]
EXPANDED = {"showExpandedEvents": True}


def test_namespaces_match_exactly(client: Client, db: Data) -> None:
    """Only names that begin with ``system.`` are reserved."""
    names = ["a", "a.b", "aa", "a+", "a|b", "[a]", "A", "b", "axb", "ä-ß", "a b", "(a)*"]
    names += ["systemindexes", "system_users", "a.system"]
    streams = {name: Stream(client, db.name, name) for name in names}
    assert db.name not in client.list_database_names()
    for name in names:
        db[name].insert_one({"_id": name})
    end = now(client)
    for name, stream in streams.items():
        with stream:
            [event] = stream.past(end)
        assert event["documentKey"]["_id"] == name
        assert event["ns"] == {"db": db.name, "coll": name}


def test_internal_namespaces_are_hidden(client: Client, db: Data) -> None:
    with Stream(client, "admin", 1, CLUSTER) as everything, Stream(client, db.name) as one:
        client.config.settings.update_one(
            {"_id": "conformance"}, {"$inc": {"runs": 1}}, upsert=True
        )
        db.create_collection("v", viewOn="a", pipeline=[])
        db.a.insert_one({"_id": 1})
        end = now(client)
        events = [*everything.past(end), *one.past(end)]
    assert {(event["ns"]["db"], event["ns"]["coll"]) for event in events} == {(db.name, "a")}


@on_real_servers("reshardCollection")
def test_resharding_is_an_expanded_event(
    client: Client, cluster: TestCluster, sharded: Documents
) -> None:
    if cluster.real:  # resharding takes at least five minutes by default
        with cluster.direct("config") as config:
            config.admin.command("setParameter", 1, reshardingMinimumOperationDurationMillis=0)
    sharded.insert_many([{"_id": k, "k": k, "z": -k} for k in (1, 11, 21)])
    sharded.create_index("z")
    with Stream(client, sharded.database.name, 1, EXPANDED) as stream:
        client.admin.command(
            "reshardCollection", sharded.full_name, key={"z": 1}, numInitialChunks=1
        )
        sharded.insert_one({"_id": 2, "k": 2, "z": 5})
        events = stream.until(lambda stream: "insert" in kinds(stream.events))
    [event] = [each for each in events if each["operationType"] == "reshardCollection"]
    description = event["operationDescription"]
    assert description["shardKey"] == {"z": 1}
    assert isinstance(description["reshardUUID"], Binary)
    assert list(events[-1]["documentKey"].items()) == [("z", 5), ("_id", 2)]
    assert events[-1]["collectionUUID"] == description["reshardUUID"]


# On newer servers.


def test_a_lookup_may_require_the_same_collection_uuid(newer: Client) -> None:
    """The option is new in 8.0; the embedded cluster's version 2 shards support it."""
    db = newer["lookups"]
    db.a.insert_one({"_id": 1})
    options = {"fullDocument": "updateLookup", "matchCollectionUUIDForUpdateLookup": True}
    start = next_tick(now(newer))
    db.a.update_one({"_id": 1}, {"$set": {"v": 1}})
    db.a.drop()
    db.a.insert_one({"_id": 1, "other": True})
    shown = []
    for match in (True, False):
        chosen = {
            **options,
            "matchCollectionUUIDForUpdateLookup": match,
            "startAtOperationTime": start,
        }
        with Stream(newer, db.name, 1, chosen) as stream:
            event = next(e for e in stream.read(3) if e["operationType"] == "update")
        shown.append(event["fullDocument"])
    assert shown == [None, {"_id": 1, "other": True}]


def test_older_shards_refuse_the_uuid_option(client: Client) -> None:
    error = refused(client, "test", opening({"matchCollectionUUIDForUpdateLookup": True}))
    assert error["code"] == 40415


def test_a_large_transaction_is_one_transaction(client: Client, sharded: Documents) -> None:
    def insert(session: ClientSession) -> None:
        for number in range(4):
            document = {"_id": number, "k": 1, "x": "x" * (6 << 20)}
            sharded.insert_one(document, session=session)
        sharded.insert_one({"_id": 9, "k": 21}, session=session)

    with Stream(client, sharded.database.name) as stream:
        with client.start_session() as session:
            session.with_transaction(insert)  # retried if a busy machine takes more than a minute
        events = stream.read(5)
    assert sorted(event["documentKey"]["_id"] for event in events) == [0, 1, 2, 3, 9]
    assert len({event["txnNumber"] for event in events}) == 1
    large = [event for event in events if event["documentKey"]["k"] == 1]
    assert [event["documentKey"]["_id"] for event in large] == [0, 1, 2, 3]
    assert len({event["clusterTime"] for event in large}) == 1
    resume = {"resumeAfter": large[1]["_id"]}
    with Stream(client, sharded.database.name, 1, resume) as stream:
        expected = events[events.index(large[1]) + 1 :]
        assert stream.read(len(expected)) == expected
