"""Filters that clients share by default give the same events as mongos's streams.

The embedded cluster's mongos has no change streams: there the test evaluates the filters.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from bson import Timestamp

from tests.conformance.streams import CLUSTER, Event, Stream, next_tick, now
from tests.harness.clusters import Client, TestCluster, real_servers_named
from tests.harness.routers import start_router
from tests.harness.until import wait_for

Filter = Mapping[str, Any]

DATABASES = ("dd", "de")
COLLECTIONS = ("coll1", "coll2", "3")

FILTERS: Mapping[str, Sequence[Filter]] = {
    "one path": [{"ns.db.extra": each} for each in ("dd", "de", None, "coll1", 1)],
    "another path": [{"ns.coll.x": each} for each in ("coll1", "coll2", "3", None, "dd")],
    "namespaces": [
        {"ns.db.extra": "dd"},
        {"ns.coll.x": "coll1"},
        {"ns.db.extra": None},
        {"ns.coll.x": {"$exists": False}},
        {"ns.db.extra": {"$in": ["dd", None]}},
        {"ns.db": "dd", "ns.coll.x": "coll1"},
        {"$or": [{"ns.db.extra": "dd"}, {"ns.coll": "coll2"}]},
        {"$nor": [{"ns.db.extra": "dd"}]},
    ],
    "documents": [
        {"documentKey._id.x": "key1"},
        {"documentKey._id.x": None},
        {"fullDocument.text.x": "text"},
        {"fullDocument.text.x": None, "fullDocument.tags.x": None},
        {"fullDocument.tags.x": "a"},
        {"fullDocument.tags": "a", "fullDocument.bytes.x": {"$exists": False}},
        {"updateDescription.updatedFields.text.x": "new"},
        {"updateDescription.updatedFields.text": "new"},
    ],
}
"""Filters like those of the servers' own tests of namespaces: a path goes on below a string."""


@pytest.fixture(scope="module")
def router(cluster: TestCluster) -> Iterator[Client]:
    """A client of a router with default settings."""
    with start_router(cluster.configdb, cluster.mongos_uri) as started, Client(started.uri) as one:
        yield one


def write(client: Client) -> Timestamp:
    """Write events of several kinds and layouts; return the time of the last one."""
    for round_ in range(6):
        for database in DATABASES:
            for name in COLLECTIONS:
                collection = client[database][name]
                key = f"key{round_}" if name == "coll1" else {"_id": round_}
                more = {"bytes": b"text"} if round_ % 2 else {}
                collection.insert_one({"_id": key, "text": "text", "tags": ["a", "b"], **more})
                collection.update_one({"_id": key}, {"$set": {"text": "new"}})
                collection.delete_one({"_id": key})
    return now(client)


def meets(match: Filter, event: Event) -> bool:
    """Evaluate the filters of this module, none of which needs more."""
    for name, wanted in match.items():
        if name == "$or":
            met = any(meets(each, event) for each in wanted)
        elif name == "$nor":
            met = not any(meets(each, event) for each in wanted)
        else:
            value: Any = event
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else _below(value)
            if isinstance(wanted, dict):
                met = value is None if "$exists" in wanted else value in wanted["$in"]
            else:
                met = value == wanted or (isinstance(value, list) and wanted in value)
        if not met:
            return False
    return True


def _below(value: Any) -> Any:
    """Return what is below a value: nothing, which equals null, or no value at all in an array."""
    return () if isinstance(value, list) else None


def shared_filters(client: Client) -> int:
    """Return the number of different filters that the router evaluates on one stream."""
    streams = client.admin.command("serverStatus")["mergerouter"]["streams"]
    return max((each.get("filtered", {}).get("filters", 0) for each in streams), default=0)


@pytest.mark.parametrize("filters", FILTERS.values(), ids=list(FILTERS))
def test_shared_filters_give_mongos_s_events(
    cluster: TestCluster, router: Client, filters: Sequence[Filter]
) -> None:
    with Client(cluster.mongos_uri) as mongos, ExitStack() as closing:
        for database in DATABASES:
            for name in COLLECTIONS:
                mongos[database][name].insert_one({"_id": "first"})
                mongos[database][name].delete_one({"_id": "first"})
        options = {**CLUSTER, "startAtOperationTime": next_tick(now(mongos))}

        def opened(client: Client, *stages: Filter) -> Stream:
            return closing.enter_context(Stream(client, "admin", 1, options, list(stages)))

        def expected(match: Filter) -> list[Event]:
            if real_servers_named():
                return opened(mongos, {"$match": match}).past(end)
            return [each for each in opened(router).past(end) if meets(match, each)]

        streams = [opened(router, {"$match": match}) for match in filters]

        def are_shared() -> bool:
            for stream in streams:
                stream.more()
            return shared_filters(router) == len(filters)

        wait_for(are_shared, "the filters to be shared")
        end = write(mongos)
        given = [stream.past(end) for stream in streams]
        assert shared_filters(router) == len(filters), "they shared to the end"
        for match, events in zip(filters, given, strict=True):
            wanted = [each for each in expected(match) if each["clusterTime"] <= end]
            assert [each for each in events if each["clusterTime"] <= end] == wanted, match
        assert any(given)
