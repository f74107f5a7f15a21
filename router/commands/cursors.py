"""The commands of merged cursors, and of the sessions that they end with.

Only the upstream answers those of other cursors; those of sessions go there as well.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Final

from bson.int64 import Int64

from router.access.authorization import not_authorized
from router.commands.call import Call
from router.commands.command import answers
from router.commands.other_workers import (
    ANYBODY,
    ask_other_workers,
    get_more_from_owner,
    kill_at_owners,
    other_owner,
)
from router.commands.reply_bodies import PASS_THROUGH, Answer, AnyAnswer, build_cursor_reply
from router.cursors.cursor import Owner, user_digest
from router.parameter import MILLISECONDS
from router.privileges import CLUSTER, Resource
from router.request.accepted import (
    LONGEST_TIME,
    OF_ANY_COMMAND,
    Accepts,
    is_read_preference,
    is_session,
)
from router.request.field_checks import (
    at_least_zero,
    check_known,
    check_same_api,
    required,
    text,
    wrong_type,
)
from shard_client.bson.values import type_name
from shard_client.errors import CommandError, ErrorCode

DEFAULT_AWAIT_MS = 1000
_GET_MORE_FIELDS = frozenset({"collection", "batchSize", "term", "lastKnownCommittedOpTime"})
_USUAL_FIELDS: Final[Mapping[str, Accepts]] = {
    **OF_ANY_COMMAND,
    "lsid": is_session,
    "$readPreference": is_read_preference,
    **dict.fromkeys(
        ("getMore", "collection", "batchSize", "comment", "apiVersion", "apiStrict",
         "apiDeprecationErrors", "$db"),
        lambda _value: True,
    ),
}  # fmt: skip
_KILL_LISTS = ("cursorsKilled", "cursorsNotFound", "cursorsAlive", "cursorsUnknown")

_Lists = dict[str, list[Int64]]


@answers("getMore", help="the next batch of a cursor", api_versions=("1",), checks_fields=True)
async def get_more(call: Call) -> AnyAnswer:
    """Return the next batch of a merged cursor (docs/protocol.md#cursor-replies).

    Raises CommandError: invalid fields, an unknown cursor or another client's, or a failed stream.
    """
    command, process = call.command, call.process
    cursor_id = command["getMore"]
    if not isinstance(cursor_id, Int64):
        text(command, "getMore", "collection")  # mongos looks at the first field last
        raise wrong_type("getMore.getMore", cursor_id, "long")
    is_own = cursor_id in process.cursors
    if call.client.is_worker:
        pass  # the client's own worker has checked the fields
    elif call.upstream is None:
        await call.check_generic_fields()
    elif (is_own or other_owner(call, cursor_id)) and not all(map(_is_usual, command.items())):
        await call.let_upstream_check(command)
    if not is_own:
        reply = await get_more_from_owner(call, cursor_id)
        if reply is not None:
            return reply
        if call.upstream is not None:
            return PASS_THROUGH
    collection = text(command, "getMore", "collection")
    check_known(command, "getMore", _GET_MORE_FIELDS)
    if not collection:
        raise CommandError(ErrorCode.InvalidNamespace, "Collection names cannot be empty")
    batch_size = at_least_zero(command, "getMore", "batchSize")
    max_time_ms = at_least_zero(command, "getMore", "maxTimeMS")
    wait = DEFAULT_AWAIT_MS if max_time_ms is None else min(max_time_ms, LONGEST_TIME)
    owner = Owner(call.lsid, call.user_name)
    with process.cursors.checkout(cursor_id, owner) as cursor:
        call.cursor_id = cursor_id
        check_same_api(cursor.api, command)
        try:
            if process.fail_points is not None:
                process.fail_points.after_checkout(call, cursor)
            batch = await cursor.next_batch(batch_size or None, wait * MILLISECONDS)
        except CommandError as error:
            raise process.as_mongos_says(error) from error
    namespace = f"{call.database}.{collection}"
    return build_cursor_reply("nextBatch", batch, cursor_id, namespace, process.reply_times)


def _is_usual(item: tuple[str, Any]) -> bool:
    """Return whether the router knows a field of a getMore; the upstream checks all others."""
    name, value = item
    return name in _USUAL_FIELDS and _USUAL_FIELDS[name](value)


@answers("killCursors", help="end cursors", while_quiescing=True, api_versions=("1",))
async def kill_cursors(call: Call) -> AnyAnswer:
    """Kill merged cursors and ask the upstream to kill the others
    (docs/protocol.md#cursor-replies).

    Raises CommandError: invalid fields, or the upstream refuses.
    """
    command, process = call.command, call.process
    cursor_ids = required(command, "killCursors", "cursors")
    if type(collection := command["killCursors"]) is not str:
        message = f"collection name has invalid type {type_name(collection)}"
        raise CommandError(ErrorCode.BadValue, message)
    if not isinstance(cursor_ids, list):
        raise wrong_type("killCursors.cursors", cursor_ids, "array")
    for index, cursor_id in enumerate(cursor_ids):
        if not isinstance(cursor_id, Int64):
            raise wrong_type(f"killCursors.cursors.{index}", cursor_id, "long")
    owner = Owner(call.lsid, call.user_name)
    anybody = call.user_name == ANYBODY
    if call.user is not None:
        resources = (CLUSTER, Resource(call.database, command["killCursors"]))
        anybody = any(
            call.user.privileges.allow(resource, "killAnyCursor") for resource in resources
        )
    ours = [identifier for identifier in cursor_ids if identifier in process.cursors]
    if not anybody and process.cursors.has_another_users(ours, owner):
        raise not_authorized(call.database, command, call.user_name)
    others = [identifier for identifier in cursor_ids if identifier not in process.cursors]
    lists: _Lists = {name: [] for name in _KILL_LISTS}
    for reply in await kill_at_owners(call, others, anybody=anybody):
        del reply["cursorsNotFound"]
        _add_lists(lists, reply)
    done = {identifier for ids in lists.values() for identifier in ids}
    others = [identifier for identifier in others if identifier not in done]
    if call.upstream is not None and not ours and not done:
        return PASS_THROUGH
    asked_here = ours if call.upstream is not None else [*ours, *others]
    killed, not_found = process.cursors.kill(asked_here)
    lists["cursorsKilled"] += map(Int64, killed)
    lists["cursorsNotFound"] += map(Int64, not_found)
    if others and (link := call.upstream_link) is not None:
        reply = await link.command(call.database, {**command, "cursors": others})
        _add_lists(lists, reply)
    return Answer(lists)


def _add_lists(lists: _Lists, reply: Mapping[str, Any]) -> None:
    for name, identifiers in lists.items():
        identifiers.extend(reply.get(name, ()))


@answers("endSessions", help="end sessions", while_quiescing=True, api_versions=("1",))
async def end_sessions(call: Call) -> AnyAnswer:
    """Kill the merged cursors of the user's named sessions that no getMore uses, as mongos does.

    Then pass the command to the upstream. Raises CommandError: the sessions are not a list of
    documents with an id.
    """
    call.process.cursors.end_sessions(_own_sessions(call), busy=False)
    return await _everywhere_else(call)


@answers("killSessions", help="kill sessions", while_quiescing=True)
@answers("killAllSessions", help="kill users' sessions (with an upstream)", while_quiescing=True)
@answers("killAllSessionsByPattern", help="the same, by a pattern", while_quiescing=True)
async def kill_sessions(call: Call) -> AnyAnswer:
    """Kill the merged cursors of the named sessions, once the upstream has killed all others.

    The upstream checks the rights and the fields; without one, a user kills only its own sessions.
    If none is named, these are the user's sessions, or those of all users. Raises CommandError: the
    upstream refuses the command, or the sessions are not a list of documents with an id.
    """
    named = _named_sessions
    if (link := call.upstream_link) is not None:
        await link.command(call.database, call.command)
    elif not call.client.is_worker:
        if call.name != "killSessions":
            return PASS_THROUGH
        named = _own_sessions
    call.process.cursors.end_sessions(named(call), busy=True)
    await ask_other_workers(call)
    return Answer({})


@answers("refreshSessions", help="keep sessions", api_versions=("1",))
async def refresh_sessions(call: Call) -> AnyAnswer:
    """Restart the idle time of the user's named sessions, here and in the upstream.

    Raises CommandError: the sessions are not a list of documents with an id.
    """
    call.process.cursors.refresh_sessions(_own_sessions(call))
    return await _everywhere_else(call)


async def _everywhere_else(call: Call) -> AnyAnswer:
    await ask_other_workers(call)
    return PASS_THROUGH if call.upstream is not None else Answer({})


def _own_sessions(call: Call) -> Callable[[Owner], bool]:
    """Return whether a session is one of the user's that the command names, or one of all its."""
    sessions, kills = call.command[call.name], call.name == "killSessions"
    path = "KillSessionsCmd.killSessions" if kills else f"{call.name}.{call.name}FromClient"
    if not isinstance(sessions, list):
        raise wrong_type(f"{path.partition('.')[0]}.{call.name}", sessions, "array")
    ids, own = set(), user_digest(call.user_name)
    for index, session in enumerate(sessions):
        if not isinstance(session, Mapping):
            raise wrong_type(f"{path}.{index}", session, "object")
        identifier = required(session, path, "id")
        if not isinstance(identifier, bytes):
            raise wrong_type(f"{path}.id", identifier, "binData")
        if call.user_name is not None and session.get("uid") not in (None, own):
            message = "Unauthorized to set user digest in LogicalSessionId"
            raise CommandError(ErrorCode.Unauthorized, message)
        ids.add(bytes(identifier))
    every = kills and not ids
    return lambda owner: owner.user == call.user_name and (every or owner.lsid in ids)


def _named_sessions(call: Call) -> Callable[[Owner], bool]:
    """Return whether a session is one that a command names which the upstream has accepted."""
    own = user_digest(call.user_name) if call.name == "killSessions" else None
    named = set()
    given = [each for each in call.command[call.name] if each is not None]  # servers skip null
    for each in given or [{}]:
        session = each if own else each.get("lsid") or each
        of_user = call.name == "killAllSessions" and each
        digest = user_digest("{user}@{db}".format(**each)) if of_user else own
        fields = session.get("id"), session.get("uid") or digest
        named.add(tuple(None if field is None else bytes(field) for field in fields))

    def is_named(owner: Owner) -> bool:
        digest = user_digest(owner.user)
        return not named.isdisjoint(product((owner.lsid, None), (digest, None)))

    return is_named
