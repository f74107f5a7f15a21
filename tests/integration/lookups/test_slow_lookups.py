"""Lookups that the upstream ends because their time is over."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster
from tests.integration.lookups.both import Data, documents, drain, since, tick

pytestmark = pytest.mark.usefixtures("real_only")


@pytest.fixture
def real_only(cluster: TestCluster) -> None:
    if not cluster.real:
        pytest.skip("embedded servers have no failpoints")


@contextmanager
def expiring(mongos: Client, mode: Any) -> Iterator[None]:
    """Have the mongos end the router's finds as if their time were over."""
    point = {"configureFailPoint": "failCommand"}
    data = {"failCommands": ["find"], "errorCode": 50, "appName": "mergerouter upstream"}
    mongos.admin.command({**point, "mode": mode, "data": data})
    try:
        yield
    finally:
        mongos.admin.command({**point, "mode": "off"})


def stream(start: Any) -> dict[str, Any]:
    pipeline = [{"$changeStream": since(start)}]
    return {"aggregate": "a", "pipeline": pipeline, "cursor": {}}


def test_documents_are_looked_up_one_by_one_after_a_timeout(
    router: Client, mongos: Client, db: Data
) -> None:
    start = tick(mongos)
    db.a.insert_many([{"_id": n} for n in range(5)])
    db.a.update_many({}, {"$set": {"v": 1}})
    past = tick(mongos)
    with expiring(mongos, {"times": 1}):
        events = [bson.decode(each) for each in drain(router, stream(start), db.name, past)]
    assert documents(events) == [{"_id": n, "v": 1} for n in range(5)]


def test_the_events_before_a_lookup_that_fails_are_delivered(
    router: Client, mongos: Client, db: Data
) -> None:
    start = tick(mongos)
    db.a.insert_many([{"_id": n} for n in range(5)])
    db.a.update_many({}, {"$set": {"v": 1}})
    inserted: list[Any] = []

    def read() -> None:
        with router.start_session() as session:
            cursor = router[db.name].command(stream(start), session=session)["cursor"]
            more = {"getMore": cursor["id"], "collection": "a"}
            while True:
                batch = router[db.name].command(more, session=session)["cursor"]["nextBatch"]
                inserted.extend(each["operationType"] for each in batch)

    with expiring(mongos, "alwaysOn"), pytest.raises(OperationFailure) as error:
        read()
    assert error.value.code == 89
    assert error.value.has_error_label("ResumableChangeStreamError")
    assert inserted == ["insert"] * 5
