"""Transactions: the fields and the order of their events, on one or several shards
(docs/protocol.md#events)."""

from collections import defaultdict

import pytest
from pymongo.client_session import ClientSession

from tests.conformance.data import Documents
from tests.conformance.streams import Event, Stream, now
from tests.harness.clusters import Client, TestCluster

rule = pytest.mark.rule


def write_all_over(client: Client, sharded: Documents) -> None:
    with client.start_session() as session, session.start_transaction():
        for number in range(9):
            sharded.insert_one({"_id": number, "k": number % 3 * 10 + 1}, session=session)
        sharded.update_one({"_id": 0, "k": 1}, {"$set": {"v": 1}}, session=session)
        sharded.delete_one({"_id": 1, "k": 11}, session=session)


def by_shard(events: list[Event]) -> dict[int, list[Event]]:
    shards = defaultdict(list)
    for event in events:
        shards[event["documentKey"]["k"]].append(event)
    return shards


@rule("Sharded cluster", "sorted by token, the shards' events are byte for byte the merged stream")
def test_the_shards_events_make_up_the_merged_stream(
    client: Client, cluster: TestCluster, sharded: Documents
) -> None:
    name = sharded.database.name
    with Stream(client, name) as stream:
        start = stream.pbrt
        write_all_over(client, sharded)
        sharded.update_many({}, {"$inc": {"v": 1}})
        sharded.drop()
        end = now(client)
        merged = stream.past(end)
    apart: list[Event] = []
    for shard in list(cluster.shards)[:3]:
        with (
            cluster.direct(shard) as direct,
            Stream(direct, name, 1, {"resumeAfter": start}) as own,
        ):
            # An idle member's watermark advances with its next no-op.
            apart += own.past(end)
    assert merged == sorted(apart, key=lambda event: event["_id"]["_data"])


@rule("Events", "a transaction of more than 16 MiB is one transaction")
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
    large = by_shard(events)[1]
    assert [event["documentKey"]["_id"] for event in large] == [0, 1, 2, 3]
    assert len({event["clusterTime"] for event in large}) == 1
    resume = {"resumeAfter": large[1]["_id"]}
    with Stream(client, sharded.database.name, 1, resume) as stream:
        expected = events[events.index(large[1]) + 1 :]
        assert stream.read(len(expected)) == expected
