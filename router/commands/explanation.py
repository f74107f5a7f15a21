"""The explain command for a merged stream, with the plan in mongos's format."""

import asyncio
from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from router.catalog.cluster_time import connections_to
from router.lookup.pushdown import UPDATE_LOOKUP, LookupPlan
from router.request.shard_commands import shard_command
from router.request.stream_request import StreamRequest
from router.stream.merge.merged_stream import only_shard
from router.stream.open_streams import OpenStreams
from shard_client.bson.resume_token import next_tick
from shard_client.replica_set.replica_set import ReadPreference


async def explain_stream(
    request: StreamRequest, verbosity: Any, streams: OpenStreams
) -> dict[str, Any]:
    """Return the fields of explain's reply that describe the plan, in mongos's order.

    Each shard explains the command that the router would send it for ``request``; its answer is
    included unchanged. The lookup and the stages that follow it are in the merger's part. The
    router's own part says which of ``streams`` a client would read. Raises CommandError if a shard
    refuses the command, NetworkError if one does not answer.
    """
    cluster, settings = streams.cluster, streams.resources.settings
    lookup = LookupPlan.of(request)
    request = request if lookup is None else lookup.remote
    choices = streams.policy.explain(request, asyncio.get_running_loop().time())
    shards = (await cluster.shards()).hosts
    if request.passthrough_to_shard is not None:
        shards = only_shard(shards, request.passthrough_to_shard)
    preference = ReadPreference.of(request.read_preference)
    async with connections_to(cluster, shards, preference, settings.open_timeout) as connections:
        start_at = request.start_time or next_tick(cluster.clock.time or Timestamp(0, 0))
        database, command = shard_command(request, start_at)
        # The read concern has no effect on the plan.
        inner = {name: value for name, value in command.items() if name != "readConcern"}
        asked = {"explain": {**inner, "cursor": {}}, "verbosity": verbosity}
        members = connections.values()
        replies = await asyncio.gather(
            *(member.command(database, asked, timeout=settings.reply_timeout) for member in members)
        )
        hosts = [":".join(map(str, member.address)) for member in members]
    stages = [
        {"host": host, "stages": reply.get("stages", [])}
        for host, reply in zip(hosts, replies, strict=True)
    ]
    return {
        "serverParameters": replies[0].get("serverParameters", {}) if replies else {},
        "mergeType": "mongos",
        "splitPipeline": {
            "shardsPart": command["pipeline"],
            "mergerPart": _merger_part(request.namespace, lookup),
        },
        "shards": dict(zip(connections, stages, strict=True)),
        **({"mergerouter": choices} if choices else {}),
    }


def _merger_part(namespace: str, plan: LookupPlan | None) -> list[Mapping[str, Any]]:
    merge = {
        "sort": {"_id._data": 1},
        "compareWholeSortKey": False,
        "tailableMode": "tailableAndAwaitData",
        "nss": namespace,
        "allowPartialResults": False,
        "recordRemoteOpWaitTime": False,
    }
    topology = {"$changeStream": {"stage": "internalHandleTopologyChange"}}
    if plan is None:
        return [{"$mergeCursors": merge}, topology]
    lookup = {"stage": "$_internalChangeStreamAddPostImage", "fullDocument": UPDATE_LOOKUP}
    return [{"$mergeCursors": merge}, topology, {"$changeStream": lookup}, *plan.stages]
