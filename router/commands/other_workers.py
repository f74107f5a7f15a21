"""What the commands of one worker pass on to the others, or ask them.

With a single process, or if another worker asks, there are no others (docs/workers.md).
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import structlog

from router.commands.call import Call
from router.commands.reply_bodies import RawAnswer, code_of
from router.peers.messages import SetVerbosity, WorkerSignal
from router.peers.peers import ON_BEHALF_OF, Peer, Peers
from shard_client.errors import ErrorCode, NetworkError
from shard_client.wire.documents import encode
from shard_client.wire.frames import BODY_OFFSET, build_msg

log = structlog.get_logger(component="NETWORK")

ANYBODY: Final = "*"
"""The name of a user that may act on all users' cursors; a real user's name has an @."""


async def ask_other_workers(call: Call) -> Sequence[dict[str, Any]]:
    """Run the call's command on all other workers; return the replies received."""
    peers = _peers(call)
    if peers is None:
        return ()
    return await peers.ask_all(call.database, _for_user(call, call.command))


async def change_all_processes(call: Call, change: SetVerbosity | WorkerSignal) -> None:
    """Run a command that changes the process on all other workers, and tell the parent too."""
    await ask_other_workers(call)
    peers = _peers(call)
    if peers is not None:
        peers.tell_parent(change)


async def get_more_from_owner(call: Call, cursor_id: int) -> RawAnswer | None:
    """Return the answer of the worker that owns a cursor; None if no other worker has it."""
    owner = other_owner(call, cursor_id)
    if owner is None:
        return None
    assert call.raw is not None
    call.cursor_id = cursor_id
    call.process.counters.passed_on += 1
    body = call.raw if call.user_name is None else encode(_for_user(call, call.command))
    frame = build_msg(body, request_id=0)
    try:
        async with aclosing(call.client.link_to(owner).relay(frame)) as replies:
            reply = await anext(replies)
    except NetworkError as error:
        _log_lost(owner, error)
        return None
    if code_of(reply) == ErrorCode.CursorNotFound:
        return None
    call.process.advance_clock(reply)
    return RawAnswer([reply[BODY_OFFSET:]])


async def kill_at_owners(
    call: Call, cursor_ids: Sequence[int], *, anybody: bool
) -> list[dict[str, Any]]:
    """Kill those of the cursors that belong to other workers; return these workers' replies.

    ``anybody`` is whether the user may kill other users' cursors.
    """
    owned: dict[Peer, list[int]] = {}
    for cursor_id in cursor_ids:
        owner = other_owner(call, cursor_id)
        if owner is not None:
            owned.setdefault(owner, []).append(cursor_id)
    command = {**_for_user(call, call.command), **({ON_BEHALF_OF: ANYBODY} if anybody else {})}
    replies = []
    for owner, named in owned.items():
        try:
            link = call.client.link_to(owner)
            replies.append(await link.command(call.database, {**command, "cursors": named}))
        except NetworkError as error:
            _log_lost(owner, error)
    return replies


async def kill_unread(call: Call | None) -> None:
    """Kill the cursor of a call whose reply is lost with the client's connection, in bounded time.

    The client cannot go on with it: drivers open another cursor, where the lost events come again.
    It would hold its stream's events until it times out.
    """
    if call is None or call.cursor_id is None:
        return
    call.process.cursors.kill((call.cursor_id,))
    owner = other_owner(call, call.cursor_id)
    if owner is not None:
        with anyio.CancelScope(shield=True):
            await owner.kill_cursor(call.cursor_id, call.user_name)


def take_user(document: Mapping[str, Any]) -> str | None:
    """Remove the name of the user for whom another worker passes a command on; return it."""
    assert isinstance(document, dict)
    name = document.pop(ON_BEHALF_OF, None)
    return name if isinstance(name, str) else None


def _peers(call: Call) -> Peers | None:
    return None if call.client.is_worker else call.process.peers


def other_owner(call: Call, cursor_id: int) -> Peer | None:
    """Return the other worker that may have the cursor; None if no other one has."""
    peers = _peers(call)
    return None if peers is None else peers.owner(cursor_id)


def _for_user(call: Call, command: Mapping[str, Any]) -> Mapping[str, Any]:
    name = call.user_name
    return command if name is None else {**command, ON_BEHALF_OF: name}


def _log_lost(owner: Peer, error: NetworkError) -> None:
    """Log that a worker is gone, and its cursors with it."""
    log.info("The cursor's worker is gone", asked=owner.number, error=str(error))
