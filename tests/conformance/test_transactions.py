"""Transactions: the fields and the order of their events, on one or several shards
(docs/protocol.md#events)."""

import pytest
from pymongo.client_session import ClientSession

from tests.conformance.data import Documents
from tests.conformance.streams import Stream
from tests.harness.clusters import Client

rule = pytest.mark.rule


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
    large = [event for event in events if event["documentKey"]["k"] == 1]
    assert [event["documentKey"]["_id"] for event in large] == [0, 1, 2, 3]
    assert len({event["clusterTime"] for event in large}) == 1
    resume = {"resumeAfter": large[1]["_id"]}
    with Stream(client, sharded.database.name, 1, resume) as stream:
        expected = events[events.index(large[1]) + 1 :]
        assert stream.read(len(expected)) == expected
