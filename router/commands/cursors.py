"""getMore and killCursors of merged cursors; those of other cursors go to the upstream."""

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from router.access.authorization import STREAM_ACTIONS, not_authorized, stream_resource_of
from router.access.privileges import CLUSTER, Resource
from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer, RawAnswer, ToWorker
from router.commands.api_version import check_same_api
from router.commands.call import ANYBODY, ON_BEHALF_OF, Call, Command
from router.commands.errors import as_mongos_says
from router.commands.fail_points import after_checkout
from router.commands.fields import at_least_zero, check_known, required, text, wrong_type
from router.commands.node import Node
from router.cursors.merged_cursor import MergedCursor
from router.cursors.owner import Owner
from router.peers.peers import Peer, Peers
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError
from shard_client.remote_cursor.cursor_reply import build_cursor_reply

DEFAULT_AWAIT_MS = 1000
_SECONDS_PER_MS = 0.001
_GET_MORE_FIELDS = frozenset({"collection", "batchSize", "term", "lastKnownCommittedOpTime"})
_KILL_LISTS = ("cursorsKilled", "cursorsNotFound", "cursorsAlive", "cursorsUnknown")

_Lists = dict[str, list[Int64]]


async def get_more(call: Call) -> AnyAnswer:
    """Return the next batch of a merged cursor (docs/protocol.md#cursor-replies).

    Raises:
        CommandError: invalid fields, an unknown cursor or another client's, or a failed stream.
    """
    command, node = call.command, call.node
    cursor_id = command["getMore"]
    if not isinstance(cursor_id, Int64):
        raise wrong_type("getMore.getMore", cursor_id, "type 'long'")
    if cursor_id not in node.cursors:
        peer = call.peers.owner(cursor_id) if call.peers is not None else None
        if peer is not None:
            return ToWorker(
                peer, cursor_id, or_upstream=call.upstream is not None, user=call.user_name
            )
        if call.upstream is not None:
            return PASS_THROUGH
    collection = text(command, "getMore", "collection")
    check_known(command, "getMore", _GET_MORE_FIELDS)
    batch_size = at_least_zero(command, "getMore", "batchSize")
    max_time_ms = at_least_zero(command, "getMore", "maxTimeMS")
    if max_time_ms is None:
        max_time_ms = DEFAULT_AWAIT_MS
    owner = Owner(call.lsid, call.user_name)
    with node.cursors.checkout(cursor_id, owner) as cursor:
        refusal = lost_rights(node, cursor)
        if refusal is not None:
            node.cursors.kill((cursor_id,), owner)
            raise refusal
        check_same_api(node.api_parameters.get(cursor, "{}"), command)
        try:
            if node.fail_points is not None:
                after_checkout(node.fail_points, call, cursor.namespace)
            batch = await cursor.next_batch(batch_size or None, max_time_ms * _SECONDS_PER_MS)
        except CommandError as error:
            node.cursors.kill((cursor_id,), owner)  # the failure is permanent
            raise as_mongos_says(call.node, error) from error
    cluster_time, operation_time = node.reply_times
    return RawAnswer(
        build_cursor_reply(
            "nextBatch",
            cursor_id=0 if batch.closed else cursor.cursor_id,
            namespace=f"{call.database}.{collection}",
            events=batch.events,
            pbrt=batch.pbrt,
            size=batch.size,
            cluster_time=cluster_time,
            operation_time=operation_time,
        )
    )


def lost_rights(node: Node, cursor: MergedCursor) -> CommandError | None:
    """Return mongos's error if the cursor's user may no longer read its namespace, else None."""
    user = node.users.get(cursor)
    if user is None:
        return None
    if user.privileges.allow(stream_resource_of(cursor.namespace), *STREAM_ACTIONS):
        return None
    return CommandError(
        ErrorCode.Unauthorized, f"not authorized for getMore with cursor id {cursor.cursor_id}"
    )


async def kill_cursors(call: Call) -> AnyAnswer:
    """Kill merged cursors and ask the upstream to kill the others
    (docs/protocol.md#cursor-replies).

    Raises:
        CommandError: invalid fields, or the upstream refuses.
    """
    command, node = call.command, call.node
    text(command, "killCursors", "killCursors")
    cursor_ids = required(command, "killCursors", "cursors")
    if not isinstance(cursor_ids, list):
        raise wrong_type("killCursors.cursors", cursor_ids, "type 'array'")
    for index, cursor_id in enumerate(cursor_ids):
        if not isinstance(cursor_id, Int64):
            raise wrong_type(f"killCursors.cursors.{index}", cursor_id, "type 'long'")
    owner = Owner(call.lsid, call.user_name)
    anybody = call.user_name == ANYBODY
    if call.user is not None:
        resources = (CLUSTER, Resource(call.database, command["killCursors"]))
        anybody = any(call.user.privileges.allow(each, "killAnyCursor") for each in resources)
    ours = [each for each in cursor_ids if each in node.cursors]
    if not anybody and node.cursors.any_of_others(ours, owner):
        raise not_authorized(call.database, command, call.user_name)
    others = [each for each in cursor_ids if each not in node.cursors]
    lists: _Lists = {name: [] for name in _KILL_LISTS}
    if call.peers is not None and others:
        passed_on = {**command, ON_BEHALF_OF: ANYBODY} if anybody else call.for_worker(command)
        others = await _kill_at_workers(call, call.peers, passed_on, others, lists)
    killed_there = any(lists.values())
    if call.upstream is not None and not ours and not killed_there:
        return PASS_THROUGH
    asked_here = ours if call.upstream is not None else [*ours, *others]
    result = node.cursors.kill(asked_here, owner, anybody=anybody)
    for name, ids in zip(_KILL_LISTS, result, strict=True):
        lists[name].extend(Int64(each) for each in ids)
    if call.upstream is not None and others:
        link = call.client.upstream_link(call.upstream)
        reply = await link.command(call.database, {**command, "cursors": others})
        _add_lists(lists, reply)
    return Answer(lists)


async def _kill_at_workers(
    call: Call, peers: Peers, command: Mapping[str, Any], cursor_ids: list[Int64], lists: _Lists
) -> list[Int64]:
    """Kill other workers' cursors and extend ``lists``; return the ids that no worker knows."""
    unknown = [each for each in cursor_ids if peers.owner(each) is None]
    by_worker: dict[Peer, list[Int64]] = {}
    for cursor_id in cursor_ids:
        owner = peers.owner(cursor_id)
        if owner is not None:
            by_worker.setdefault(owner, []).append(cursor_id)
    for peer, named in by_worker.items():
        link = call.client.worker_link(peer)
        try:
            reply = await link.command(call.database, {**command, "cursors": named})
        except NetworkError:  # the worker and its cursors are gone
            unknown.extend(named)
            continue
        unknown.extend(reply.pop("cursorsNotFound"))
        _add_lists(lists, reply)
    return unknown


def _add_lists(lists: _Lists, reply: Mapping[str, Any]) -> None:
    for name, kept in lists.items():
        kept.extend(reply.get(name, ()))


COMMANDS = (
    Command(("getMore",), get_more, "the next batch of a cursor", api_versions=("1",)),
    Command(
        ("killCursors",), kill_cursors, "end cursors", while_quiescing=True, api_versions=("1",)
    ),
)
