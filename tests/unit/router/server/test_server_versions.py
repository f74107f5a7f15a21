"""Stages, options and fields of 6.0, 7.0 and 8.0 (docs/protocol.md#stages-options-and-fields).

The cluster and the upstream are scripted. tests/integration/test_beside_mongos.py compares the
answers with those of a real mongos 6.0.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from bson import Timestamp

from router.catalog.upstream import UpstreamMongos
from router.commands.call import Node
from router.server.listener import Listener
from tests.doubles.scripted_cluster import ScriptedCluster
from tests.doubles.scripted_server import ScriptedServer, answer_ok, scripted_server
from tests.harness.hosted import hosted
from tests.harness.raw_client import RawClient

WIRE_VERSIONS = {"6.0": 17, "7.0": 21, "8.0": 25}
STRICT: dict[str, Any] = {"apiVersion": "1", "apiStrict": True}

STAGES_OF_CLIENTS: list[dict[str, Any]] = [
    {"$match": {"operationType": "insert"}},
    {"$project": {"documentKey": 1}},
    {"$addFields": {"a": 1}},
    {"$set": {"a": 1}},
    {"$unset": "a"},
    {"$replaceRoot": {"newRoot": "$$ROOT"}},
    {"$replaceWith": "$$ROOT"},
    {"$redact": "$$KEEP"},
    {"$_internalInhibitOptimization": {}},
    {"$_internalShredDocuments": {}},
    {"$changeStreamSplitLargeEvent": {}},
]
OPTIONS_OF_CLIENTS: list[dict[str, Any]] = [
    {"fullDocument": "default"},
    {"fullDocument": "whenAvailable"},
    {"fullDocument": "required"},
    {"fullDocumentBeforeChange": "whenAvailable"},
    {"allChangesForCluster": False},
    {"showExpandedEvents": True},
    {"showSystemEvents": True},
    {"showRawUpdateDescription": True},
    {"showMigrationEvents": False},
    {"allowToRunOnSystemNS": True},
    {"allowToRunOnConfigDB": True},
    {"matchCollectionUUIDForUpdateLookup": True},
]
FIELDS_OF_CLIENTS: list[dict[str, Any]] = [
    {"allowDiskUse": True},
    {"hint": {"_id": 1}},
    {"let": {"a": 1}},
    {"collation": {"locale": "en"}},
    {"comment": "c"},
]

FOR_THE_UPSTREAM: list[dict[str, Any]] = [
    {"pipeline": [{"$changeStream": {}}, {"$group": {}}]},
    {"pipeline": [{"$changeStream": {}}, {"$stageOfALaterVersion": {}}]},
    {"pipeline": [{"$changeStream": {"optionOfALaterVersion": 1}}]},
    {"pipeline": [{"$changeStream": {"showExpandedEvents": True}}], **STRICT},
    {"readConcern": {"level": "local"}},
    {"maxTimeMS": 1.5},
    {"fieldOfALaterVersion": 1},
]
"""Requests with something that the router does not know (``unknown_in``)."""


class Front(NamedTuple):
    """A client of a router, the router's scripted cluster, and its upstream."""

    client: RawClient
    cluster: ScriptedCluster
    mongos: ScriptedServer

    def sent(self) -> list[dict[str, Any]]:
        """Return the commands that opened cursors on shards."""
        return [command for shard in self.cluster.shards.values() for command in shard.opened]


@pytest.fixture(params=WIRE_VERSIONS)
async def front(cluster: ScriptedCluster, request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    for member in cluster.members:
        member.wire_version = WIRE_VERSIONS[request.param]
    async with (
        scripted_server(answer_ok) as mongos,
        hosted(_router(cluster, mongos)) as port,
        await RawClient.connect(port) as client,
    ):
        yield Front(client, cluster, mongos)


@asynccontextmanager
async def _router(cluster: ScriptedCluster, mongos: ScriptedServer) -> AsyncIterator[int]:
    cursors = cluster.registry()
    servers = cluster.clusters[-1]
    upstream = UpstreamMongos([("127.0.0.1", mongos.port)])
    node = Node(clock=servers.clock, cursors=cursors, cluster=servers, upstream=upstream)
    async with Listener(node) as listener:
        yield await listener.listen(["127.0.0.1"], 0)


def watch(*stages: dict[str, Any], **options: Any) -> dict[str, Any]:
    pipeline = [{"$changeStream": {"startAtOperationTime": Timestamp(100, 1), **options}}, *stages]
    return {"aggregate": "c", "pipeline": pipeline, "cursor": {}}


async def test_the_router_serves_what_is_open_to_clients(front: Front) -> None:
    """Each stage, option and field opens a stream and reaches every shard as it was written."""
    requests = [
        *(watch(stage) for stage in STAGES_OF_CLIENTS),
        *(watch(**option) for option in OPTIONS_OF_CLIENTS),
        *({**watch(), **fields} for fields in FIELDS_OF_CLIENTS),
    ]
    for number, command in enumerate(requests):
        request = {**command, "aggregate": f"c{number}"}
        reply = await front.client.command("db", request)
        assert reply["ok"] == 1, (request, dict(reply))
        opened = [each for each in front.sent() if each["aggregate"] == request["aggregate"]]
        assert len(opened) >= len(front.cluster.shards)
        assert any(
            each["pipeline"] == request["pipeline"]
            and all(each[name] == request[name] for name in command if name not in watch())
            for each in opened
        ), (request, opened)
    assert not front.mongos.asked


async def test_the_upstream_answers_what_only_its_version_may_allow(front: Front) -> None:
    """Each request arrives there as the client wrote it, and opens nothing on the shards."""
    requests = [{**watch(), **change} for change in FOR_THE_UPSTREAM]
    for request in requests:
        reply = await front.client.command("db", request)
        assert reply.get("you") == "asked", (request, dict(reply))
        assert front.mongos.asked[-1].command == {**request, "$db": "db"}
    assert not front.sent()
