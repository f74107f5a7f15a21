"""Lookups that the upstream ends because their time is over."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.conformance.streams import Stream, kinds
from tests.harness.clusters import Client, on_real_servers
from tests.integration.lookups.both import Data, documents, since, tick

pytestmark = on_real_servers("failpoints")


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


def test_documents_are_looked_up_one_by_one_after_a_timeout(
    router: Client, mongos: Client, db: Data
) -> None:
    start = tick(mongos)
    db.a.insert_many([{"_id": n} for n in range(5)])
    db.a.update_many({}, {"$set": {"v": 1}})
    past = tick(mongos)
    with expiring(mongos, {"times": 1}), Stream(router, db.name, "a", since(start)) as stream:
        events = stream.past(past)
    assert documents(events) == [{"_id": n, "v": 1} for n in range(5)]


def test_the_events_before_a_lookup_that_fails_are_delivered(
    router: Client, mongos: Client, db: Data
) -> None:
    start = tick(mongos)
    db.a.insert_many([{"_id": n} for n in range(5)])
    db.a.update_many({}, {"$set": {"v": 1}})
    with expiring(mongos, "alwaysOn"), Stream(router, db.name, "a", since(start)) as stream:
        error = stream.failure()
    assert (error["code"], error["errorLabels"]) == (89, ["ResumableChangeStreamError"])
    assert kinds(stream.events) == ["insert"] * 5
