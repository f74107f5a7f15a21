"""aggregate and explain: the router answers change streams, the upstream all others."""

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

from bson.int64 import Int64

from router.access.authorization import not_authorized, require_stream
from router.bson_text import LONGEST
from router.commands.call import Call
from router.commands.command import answers
from router.commands.explanation import explain_stream
from router.commands.reply_bodies import Answer, AnyAnswer, PassThrough, build_cursor_reply
from router.cursors.cursor import Owner
from router.parameter import MILLISECONDS
from router.privileges import STREAM_ACTIONS, WHOLE, User, stream_resource
from router.request.field_checks import api_parameters
from router.request.recognition import MOST_STAGES, explained, is_change_stream
from router.request.stream_request import StreamRequest, check_database, parse_request, target_of
from router.stream.readers.log_reader import Batch
from shard_client.bson.values import ARRAY, STRING, type_name
from shard_client.errors import CommandError, ErrorCode
from shard_client.wire.bson_slices import Element, cut_document, find, iter_elements, string_value
from shard_client.wire.documents import decode

_OF_THE_CLUSTER = frozenset({"config", "local"})


def _is_ours(command: bytes, user: User | None) -> bool:
    """Return whether an ``aggregate``, or its ``explain``, concerns a change stream.

    Raises CommandError for a large one without rights (13), or with too many stages (9): mongos 6.0
    ends with half a million.
    """
    if not is_change_stream(command):
        return False
    if len(command) > LONGEST:
        _check_large(command, user)
    return True


def _check_large(command: bytes, user: User | None) -> None:
    """Check the rights for a large command, and its number of stages. Raises CommandError."""
    start, _ = explained(command)
    target, database = next(iter_elements(command, start)), _text(command, find(command, b"$db"))
    collection = _text(command, target)
    if user is not None and database is not None and (collection or target.type != STRING):
        resource = stream_resource(database, collection)
        if not user.privileges.allow(resource, *STREAM_ACTIONS):
            first_fields = decode(cut_document(command, LONGEST))
            raise not_authorized(database, first_fields, str(user))
    pipeline = find(command, b"pipeline", start)
    if pipeline is None or pipeline.type != ARRAY:
        return
    stages = iter_elements(command, pipeline.start, pipeline.end)
    if next(islice(stages, MOST_STAGES, None), None) is not None:
        raise CommandError(
            ErrorCode.FailedToParse, f"Pipeline length must be no longer than {MOST_STAGES} stages"
        )


def _text(command: bytes, element: Element | None) -> str | None:
    if element is None or element.type != STRING:
        return None
    return string_value(command, element).decode(errors="replace")


_answers = partial(answers, api_versions=("1",), is_ours=_is_ours, checks_fields=True)


@_answers("aggregate", help="change streams")
async def aggregate(call: Call) -> AnyAnswer:
    """Open a change stream (docs/protocol.md#cursor-replies and docs/protocol.md#opening).

    Raises CommandError: as mongos answers the same request, with the labels of change streams.
    """
    process = call.process
    request = _parsed(call, call.command)
    if isinstance(request, PassThrough):
        return request
    if request.explain:
        return await _explained(call, request, call.command, "queryPlanner")
    try:
        cursor_id, batch = await _opened(call, request)
    except CommandError as error:
        if error.code == ErrorCode.ShardNotFound and request.passthrough_to_shard is None:
            # Without shards there is nothing to watch: mongos returns an exhausted cursor.
            empty = {"id": Int64(0), "ns": request.namespace, "firstBatch": list[Any]()}
            return Answer({"cursor": empty})
        raise process.as_mongos_says(error) from error
    # mongos returns the reply of one shard, if the stream reads no others, unchanged.
    from_one = request.passthrough_to_shard is not None
    times = process.reply_times
    return build_cursor_reply(
        "firstBatch", batch, cursor_id, request.namespace, times, identity_first=from_one
    )


async def _opened(call: Call, request: StreamRequest) -> tuple[int, Batch]:
    """Open the stream within the client's time limit; return its cursor's id and first batch.

    Raises CommandError.
    """
    cursors = call.process.cursors
    limit = request.max_time_ms * MILLISECONDS if request.max_time_ms else None
    try:
        async with asyncio.timeout(limit):
            after = (call.command.get("readConcern") or {}).get("afterClusterTime")
            if after is not None:
                await cursors.streams.cluster_time.check_reached(after, request)
            owner = Owner(call.lsid, call.user_name, call.client.host, call.client.label)
            cursor, batch = await cursors.open(
                request, owner, user=call.user, api=api_parameters(call.command),
                request_bytes=len(call.raw or b""),
            )  # fmt: skip
    except TimeoutError:
        message = "operation exceeded time limit"
        raise CommandError(ErrorCode.MaxTimeMSExpired, message) from None
    call.cursor_id = cursor.cursor_id
    return cursor.cursor_id, batch


@_answers("explain", help="how a change stream would be run")
async def explain(call: Call) -> AnyAnswer:
    """Return the plan of a change stream.

    Raises CommandError: as mongos answers the same request.
    """
    inner = call.command[call.name]
    _check_same_database(call.database, inner)
    verbosity = call.command.get("verbosity", "allPlansExecution")
    request = _parsed(call, {"cursor": {}, **inner})
    if isinstance(request, PassThrough):
        return request
    return await _explained(call, request, inner, verbosity)


def _check_same_database(database: str, inner: Mapping[str, Any]) -> None:
    """Raise CommandError if the explained command names another database."""
    named = inner.get("$db", database)
    if not isinstance(named, str):
        raise CommandError(13111, f"wrong type for field ($db) {type_name(named)} != string")
    if named != database:
        raise CommandError(
            ErrorCode.InvalidNamespace,
            f"Mismatched $db in explain command. Expected {database} but got {named}",
        )


def _parsed(call: Call, command: Mapping[str, Any]) -> StreamRequest | PassThrough:
    """Return the parsed request, or PassThrough if the upstream answers in the router's place.

    The upstream receives a request that the router refuses or could not send to the shards exactly
    as the client wrote it, such as a document with a duplicate field. It answers with the messages
    of its own version, and requests that only its version allows succeed. It never receives a
    stream on a database of the cluster's own, which crashed a real mongos. An upstream without
    change streams, such as the embedded cluster's, does not know the command; then the client gets
    the router's own refusal. Raises CommandError: the request is invalid, and either there is no
    upstream or the database is the cluster's own.
    """
    try:
        if not call.decoded_exactly():
            raise CommandError(
                ErrorCode.IDLDuplicateField,
                "the command has a field twice, or a value of a type that is no longer in use",
            )
        if command.get("aggregate") == WHOLE:
            raise CommandError(
                ErrorCode.InvalidNamespace, f"Invalid namespace specified '{call.database}.{WHOLE}'"
            )
        check_database(call.database)
        if call.user is not None:
            require_stream(call.user, call.database, target_of(command), call.command)
        return parse_request(call.database, command)
    except CommandError as error:
        if call.upstream is None or call.database in _OF_THE_CLUSTER:
            raise
        return PassThrough(refusal=error)


async def _explained(
    call: Call, request: StreamRequest, command: Mapping[str, Any], verbosity: Any
) -> Answer:
    process = call.process
    build = process.server.identity.build_info
    server = {
        "host": process.server.host,
        "port": process.server.port,
        "version": process.server.identity.version,
        "gitVersion": build["gitVersion"],
    }
    plan = await explain_stream(request, verbosity, process.cursors.streams)
    named = {name: command[name] for name in ("aggregate", "pipeline")}
    shown = {**named, "cursor": command.get("cursor", {})}
    return Answer({"serverInfo": server, **plan, "command": shown})
