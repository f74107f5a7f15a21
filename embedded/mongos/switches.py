"""A test command that makes a member fail, as an operator or a power failure would."""

from typing import Any

from embedded.errors import bad_value
from embedded.mongos.request import RoutedRequest
from embedded.storage.bson_values import Document


async def switch_member(request: RoutedRequest) -> Document:
    """Switch a member (not a MongoDB command): ``{switchMember: "shard0" | "config", to: …}``.

    ``to`` is ``stop`` (close all connections and stop listening), ``start`` (again, with the same
    data at the same address), ``hang`` (send no replies), ``goOn``, ``stepDown``, ``stepUp`` or
    ``killCursors``. The calls of this mongos inside the process are not affected.

    Raises:
        CommandError: 2 BadValue for an unknown switch or member.
    """
    name, switch = str(request.command["switchMember"]), request.command.get("to")
    try:
        member = request.state.servers.member(name)
    except KeyError:
        raise bad_value(f"the member {name!r} does not exist") from None
    actions: dict[Any, Any] = {
        "stop": member.stop,
        "start": member.start_again,
        "hang": member.hang,
        "goOn": member.go_on,
        "stepDown": member.step_down,
        "stepUp": member.step_up,
        "killCursors": member.cursors.close,
    }
    if switch not in actions:
        raise bad_value(f"unknown switch {switch!r}")
    done = actions[switch]()
    if done is not None:
        await done
    return {}
