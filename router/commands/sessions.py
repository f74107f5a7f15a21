"""Logical sessions: merged cursors end with theirs, and the upstream gets the commands too."""

from collections.abc import Mapping
from typing import Any

from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call, answers
from router.commands.elsewhere import everywhere_else
from router.request.fields import wrong_type

_NAMED_IN_ERRORS = {"killSessions": "KillSessionsCmd"}


@answers("endSessions", help="end sessions", while_quiescing=True, api_versions=("1",))
@answers("killSessions", help="kill sessions", while_quiescing=True)
async def end_sessions(call: Call) -> AnyAnswer:
    """Kill the merged cursors of the named sessions, then pass the command to the upstream.

    Only killSessions kills one whose getMore is in flight, as at mongos.

    Raises:
        CommandError: the sessions are not a list of documents with an id.
    """
    busy = call.name == "killSessions"
    call.node.cursors.end_sessions(_session_ids(call), call.user_name, busy=busy)
    return await _everywhere_else(call)


@answers("refreshSessions", help="keep sessions", api_versions=("1",))
async def refresh_sessions(call: Call) -> AnyAnswer:
    """Restart the idle time of the named sessions, here and in the upstream.

    Raises:
        CommandError: the sessions are not a list of documents with an id.
    """
    call.node.cursors.refresh_sessions(_session_ids(call), call.user_name)
    return await _everywhere_else(call)


async def _everywhere_else(call: Call) -> AnyAnswer:
    await everywhere_else(call)
    return PASS_THROUGH if call.upstream is not None else Answer({})


def _session_ids(call: Call) -> list[bytes]:
    sessions: Any = call.command[call.name]
    if not isinstance(sessions, list):
        within = _NAMED_IN_ERRORS.get(call.name, call.name)
        raise wrong_type(f"{within}.{call.name}", sessions, "array")
    ids = []
    for index, session in enumerate(sessions):
        path = f"{call.name}.{call.name}.{index}"
        if not isinstance(session, Mapping):
            raise wrong_type(path, session, "object")
        if not isinstance(session.get("id"), bytes):
            raise wrong_type(f"{path}.id", session.get("id"), "binData")
        ids.append(bytes(session["id"]))
    return ids
