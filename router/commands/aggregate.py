"""aggregate and explain: the router answers change streams, the upstream all others."""

import asyncio
from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from router.access.authorization import STREAM_ACTIONS, require, stream_resource
from router.access.users import User
from router.change_stream.aggregate_fields import check_aggregate
from router.change_stream.recognition import explains_change_stream, is_change_stream
from router.change_stream.request import StreamRequest, parse_request
from router.commands.answer import Answer, AnyAnswer, PassThrough, RawAnswer
from router.commands.api_version import api_parameters
from router.commands.call import Call, Command
from router.commands.errors import as_mongos_says
from router.cursors.owner import Owner
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import build_cursor_reply

_SECONDS_PER_MS = 0.001
_OF_THE_CLUSTER = frozenset({"config", "local"})


async def aggregate(call: Call) -> AnyAnswer:
    """Open a change stream (docs/protocol.md#cursor-replies and docs/protocol.md#opening).

    Raises:
        CommandError: as mongos answers the same request, with the labels of change streams.
    """
    node = call.node
    request = _parsed(call, call.command)
    if isinstance(request, PassThrough):
        return request
    if request.explain:
        return await _explained(call, request, call.command, "queryPlanner")
    limit = request.max_time_ms * _SECONDS_PER_MS if request.max_time_ms else None
    try:
        async with asyncio.timeout(limit):
            owner = Owner(call.lsid, call.user_name, call.client.host)
            cursor, batch = await node.cursors.open(request, owner)
    except TimeoutError:
        raise CommandError(
            ErrorCode.MaxTimeMSExpired, "operation exceeded time limit"
        ).with_change_stream_label() from None
    except CommandError as error:
        if error.code == ErrorCode.ShardNotFound and request.passthrough_to_shard is None:
            # Without shards there is nothing to watch: mongos returns an exhausted cursor.
            empty = {"id": Int64(0), "ns": request.namespace, "firstBatch": list[Any]()}
            return Answer({"cursor": empty})
        raise as_mongos_says(node, error) from error
    node.api_parameters[cursor] = api_parameters(call.command)
    if call.user is not None:
        node.users[cursor] = call.user
    cluster_time, operation_time = node.reply_times
    return RawAnswer(
        build_cursor_reply(
            "firstBatch",
            cursor_id=0 if batch.closed else cursor.cursor_id,
            namespace=request.namespace,
            events=batch.events,
            pbrt=batch.pbrt,
            size=batch.size,
            cluster_time=cluster_time,
            operation_time=operation_time,
            # mongos returns the reply of that one shard unchanged.
            identity_first=request.passthrough_to_shard is not None,
        )
    )


async def explain(call: Call) -> AnyAnswer:
    """Return the plan of a change stream.

    Raises:
        CommandError: as mongos answers the same request.
    """
    inner = call.command[call.name]
    verbosity = call.command.get("verbosity", "allPlansExecution")
    request = _parsed(call, {"cursor": {}, **inner})
    if isinstance(request, PassThrough):
        return request
    return await _explained(call, request, inner, verbosity)


def _parsed(call: Call, command: Mapping[str, Any]) -> StreamRequest | PassThrough:
    """Return the parsed request, or PassThrough if the upstream answers in the router's place.

    The upstream receives a request that the router refuses or could not send to the shards exactly
    as the client wrote it, such as a document with a duplicate field. It answers with the messages
    of its own version, and requests that only its version allows succeed. It never receives a
    stream on a database of the cluster's own, which crashed a real mongos. An upstream without
    change streams, such as the embedded cluster's, does not know the command; then the client gets
    the router's own refusal.

    Raises:
        CommandError: the request is invalid, and either there is no upstream or the database is the
            cluster's own.
    """
    try:
        if not call.decoded_exactly():
            raise CommandError(
                ErrorCode.IDLDuplicateField,
                "the command has a field twice, or a value of a type that is no longer in use",
            )
        if call.user is not None:
            # mongos parses the command's fields, then checks the rights, then parses the stages.
            _check_rights(call, call.user, check_aggregate(call.database, command).collection)
        return parse_request(call.database, command)
    except CommandError as error:
        if call.upstream is None or call.database in _OF_THE_CLUSTER:
            raise
        return PassThrough(refusal=error)


def _check_rights(call: Call, user: User, collection: str | None) -> None:
    resource = stream_resource(call.database, collection)
    require(user, resource, *STREAM_ACTIONS, database=call.database, command=call.command)


async def _explained(
    call: Call, request: StreamRequest, command: Mapping[str, Any], verbosity: Any
) -> Answer:
    node = call.node
    build = node.identity.build_info
    server = {
        "host": node.host,
        "port": node.port,
        "version": node.identity.version,
        "gitVersion": build["gitVersion"],
    }
    plan = await node.cursors.explain(request, verbosity)
    named = {name: command[name] for name in ("aggregate", "pipeline")}
    shown = {**named, "cursor": command.get("cursor", {})}
    return Answer({"serverInfo": server, **plan, "command": shown})


COMMANDS = (
    Command(
        ("aggregate",), aggregate, "change streams", api_versions=("1",), is_ours=is_change_stream
    ),
    Command(
        ("explain",), explain, "how a change stream would be run", api_versions=("1",),
        is_ours=explains_change_stream,
    ),
)  # fmt: skip
