"""getMore and killCursors: for merged cursors; those of the upstream go on there."""

from bson.int64 import Int64

from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer, RawAnswer
from router.commands.api_version import check_same_api
from router.commands.call import Call, Command
from router.commands.fields import at_least_zero, check_known, required, text, wrong_type
from router.cursors.registry import Owner
from shard_client.cursor_reply import build_cursor_reply
from shard_client.errors import CommandError

DEFAULT_AWAIT_MS = 1000
_SECONDS_PER_MS = 0.001
_GET_MORE_FIELDS = frozenset({"collection", "batchSize", "term", "lastKnownCommittedOpTime"})
_KILL_LISTS = ("cursorsKilled", "cursorsNotFound", "cursorsAlive", "cursorsUnknown")


async def get_more(call: Call) -> AnyAnswer:
    """Return the next batch of a merged cursor (docs/protocol.md, section 2).

    Raises:
        CommandError: bad fields, no such cursor, another's cursor, or the stream failed.
    """
    command, node = call.command, call.node
    cursor_id = command["getMore"]
    if not isinstance(cursor_id, Int64):
        raise wrong_type("getMore.getMore", cursor_id, "type 'long'")
    if cursor_id not in node.cursors and node.upstream is not None:
        return PASS_THROUGH
    collection = text(command, "getMore", "collection")
    check_known(command, "getMore", _GET_MORE_FIELDS)
    batch_size = at_least_zero(command, "getMore", "batchSize")
    max_time_ms = at_least_zero(command, "getMore", "maxTimeMS")
    if max_time_ms is None:
        max_time_ms = DEFAULT_AWAIT_MS
    async with node.cursors.checkout(cursor_id, Owner(call.lsid)) as cursor:
        check_same_api(node.api_parameters.get(cursor, "{}"), command)
        try:
            if node.fail_points is not None:
                node.fail_points.after_checkout(call, cursor.namespace)
            batch = await cursor.next_batch(batch_size or None, max_time_ms * _SECONDS_PER_MS)
        except CommandError as error:
            node.cursors.kill((cursor_id,), Owner(call.lsid))  # it has failed for good
            raise error.with_change_stream_label() from error
    return RawAnswer(
        build_cursor_reply(
            "nextBatch",
            cursor_id=batch.cursor_id,
            namespace=f"{call.database}.{collection}",
            events=batch.events,
            pbrt=batch.pbrt,
            size=batch.size,
            cluster_time=node.clock.raw,
            operation_time=node.clock.time,
        )
    )


async def kill_cursors(call: Call) -> AnyAnswer:
    """Kill merged cursors; ask the upstream to kill the others (docs/protocol.md, section 2).

    Raises:
        CommandError: bad fields, or the upstream refuses.
    """
    command, node = call.command, call.node
    text(command, "killCursors", "killCursors")
    cursor_ids = required(command, "killCursors", "cursors")
    if not isinstance(cursor_ids, list):
        raise wrong_type("killCursors.cursors", cursor_ids, "type 'array'")
    for index, cursor_id in enumerate(cursor_ids):
        if not isinstance(cursor_id, Int64):
            raise wrong_type(f"killCursors.cursors.{index}", cursor_id, "type 'long'")
    ours = [each for each in cursor_ids if each in node.cursors]
    others = [each for each in cursor_ids if each not in node.cursors]
    if node.upstream is not None and not ours:
        return PASS_THROUGH
    asked_here = cursor_ids if node.upstream is None else ours
    result = node.cursors.kill(asked_here, Owner(call.lsid))
    lists = [[Int64(each) for each in kept] for kept in result]
    if node.upstream is not None and others:
        link = call.client.upstream_link(node.upstream)
        reply = await link.command(call.database, {**command, "cursors": others})
        for kept, name in zip(lists, _KILL_LISTS, strict=True):
            kept.extend(reply.get(name, ()))
    return Answer(dict(zip(_KILL_LISTS, lists, strict=True)))


COMMANDS = (
    Command(("getMore",), get_more, "the next batch of a cursor", api_versions=("1",)),
    Command(
        ("killCursors",), kill_cursors, "end cursors", while_quiescing=True, api_versions=("1",)
    ),
)
