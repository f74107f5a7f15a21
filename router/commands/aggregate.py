"""aggregate: a change stream is ours, everything else the upstream's."""

from router.change_stream.request import is_change_stream, parse_request
from router.commands.answer import PASS_THROUGH, AnyAnswer, RawAnswer
from router.commands.api_version import api_parameters
from router.commands.call import Call, Command
from router.cursors.registry import Owner
from shard_client.cursor_reply import build_cursor_reply
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


async def aggregate(call: Call) -> AnyAnswer:
    """Open a change stream (docs/protocol.md, sections 2 and 4); pass on what is none.

    Raises:
        CommandError: what mongos answers to the same request, labelled as on change streams.
    """
    if not is_change_stream(call.command):
        return PASS_THROUGH
    node = call.node
    request = parse_request(call.database, call.command)
    if request.explain:
        if node.upstream is not None:
            return PASS_THROUGH
        raise CommandError(
            ErrorCode.IllegalOperation, "explaining a change stream takes an upstream mongos"
        )
    try:
        cursor, batch = await node.cursors.open(request, Owner(call.lsid))
    except CommandError as error:
        raise error.with_change_stream_label() from error
    node.api_parameters[cursor] = api_parameters(call.command)
    return RawAnswer(
        build_cursor_reply(
            "firstBatch",
            cursor_id=batch.cursor_id,
            namespace=request.namespace,
            events=batch.events,
            pbrt=batch.pbrt,
            size=batch.size,
            cluster_time=node.clock.raw,
            operation_time=node.clock.time,
        )
    )


COMMANDS = (Command(("aggregate",), aggregate, "change streams", api_versions=("1",)),)
