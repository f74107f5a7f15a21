"""Filters that clients share by default give the same events as mongos's streams.

The embedded cluster's mongos has no change streams: there its shards evaluate the filters.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from bson import Timestamp

from tests.conformance.streams import CLUSTER, Stream, next_tick, now
from tests.harness.clusters import Client, TestCluster, real_servers_named
from tests.harness.routers import start_router
from tests.harness.until import wait_for

Filter = Mapping[str, Any]

DATABASES = ("dd", "de")
COLLECTIONS = ("coll1", "coll2", "3")

BELOW_VALUES: Sequence[Filter] = (
    {"ns.db.extra": "dd"},
    {"ns.coll.x": "coll1"},
    {"ns.db.extra": None},
    {"ns.coll.x": {"$exists": False}},
    {"ns.db.extra": {"$in": ["dd", None]}},
    {"ns.db": "dd", "ns.coll.x": "coll1"},
    {"$or": [{"ns.db.extra": "dd"}, {"ns.coll": "coll2"}]},
    {"$nor": [{"ns.db.extra": "dd"}]},
)
"""Filters like those of the servers' own tests of namespaces: a path goes on below a string."""

ON_DOCUMENTS: Sequence[Filter] = (
    {"documentKey._id.x": "key1"},
    {"documentKey._id.x": None},
    {"fullDocument.text.x": "text"},
    {"fullDocument.text.x": None, "fullDocument.tags.x": None},
    {"fullDocument.tags.x": "a"},
    {"fullDocument.tags": "a", "fullDocument.bytes.x": {"$exists": False}},
    {"updateDescription.updatedFields.text.x": "new"},
    {"updateDescription.updatedFields.text": "new"},
)


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


def shared_filters(client: Client) -> int:
    """Return the number of different filters that the router evaluates on one stream."""
    streams = client.admin.command("serverStatus")["mergerouter"]["streams"]
    return max((each.get("filtered", {}).get("filters", 0) for each in streams), default=0)


@pytest.mark.parametrize("filters", [BELOW_VALUES, ON_DOCUMENTS], ids=["namespaces", "documents"])
def test_shared_filters_give_mongos_s_events(
    cluster: TestCluster, router: Client, filters: Sequence[Filter]
) -> None:
    with Client(cluster.mongos_uri) as mongos, ExitStack() as closing:
        for database in DATABASES:
            for name in COLLECTIONS:
                mongos[database][name].insert_one({"_id": "first"})
                mongos[database][name].delete_one({"_id": "first"})
        options = {**CLUSTER, "startAtOperationTime": next_tick(now(mongos))}

        def opened(client: Client, match: Filter, **fields: Any) -> Stream:
            stream = Stream(client, "admin", 1, options, [{"$match": match}], **fields)
            return closing.enter_context(stream)

        def expected(match: Filter) -> Stream:
            if real_servers_named():
                return opened(mongos, match)
            return opened(router, match, comment="shareFilters=never shareScopes=never")

        streams = [opened(router, match) for match in filters]

        def are_shared() -> bool:
            for stream in streams:
                stream.more()
            return shared_filters(router) == len(filters)

        wait_for(are_shared, "the filters to be shared")
        end = write(mongos)
        given = [stream.past(end) for stream in streams]
        assert shared_filters(router) == len(filters), "they shared to the end"
        for match, events in zip(filters, given, strict=True):
            wanted = [each for each in expected(match).past(end) if each["clusterTime"] <= end]
            assert [each for each in events if each["clusterTime"] <= end] == wanted, match
        assert any(given)
