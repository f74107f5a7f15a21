"""A feed client's login: a SCRAM conversation in lines of JSON, relayed to the config server.

The client proves itself to the config server; the router sees no password (docs/feed.md#login).
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from router.access.authorization import STREAM_ACTIONS, require, stream_resource_of
from router.access.login import Login
from router.access.users import User
from router.feed.watch import Watch
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-1")
_MOST_STEPS = 4
_FORM = '{"login": {"mechanism": "SCRAM-SHA-256", "payload": "n,,n=USER,r=NONCE"}}'

ReadLine = Callable[[], Awaitable[bytes]]
WriteLine = Callable[[Mapping[str, Any]], Awaitable[None]]


async def log_in(login: Login, read: ReadLine, write: WriteLine) -> User:
    """Relay a client's login until it is done and return its user.

    Args:
        login: the state of the client's login.
        read: returns the client's next line, empty at its end.
        write: sends the client a document as a line.

    Raises:
        ValueError: a line is no login.
        CommandError: 13, the client does not log in; or the config server refuses the login.
    """
    step: dict[str, Any] = {}
    database = "admin"
    for number in range(_MOST_STEPS):
        line = await read()
        fields = _fields(line)
        payload = _text(fields, "payload").encode()
        if number == 0:
            mechanism, database = _text(fields, "mechanism"), _text(fields, "authSource", "admin")
            if mechanism not in _MECHANISMS:
                raise ValueError(f"mechanism must be one of {', '.join(_MECHANISMS)}")
            options = {"skipEmptyExchange": True}
            step = {"saslStart": 1, "mechanism": mechanism, "payload": payload, "options": options}
        else:
            step = {"saslContinue": 1, "conversationId": step["conversationId"], "payload": payload}
        try:
            reply = await login.converse(None, database, step)
        except NetworkError as error:
            raise CommandError(
                ErrorCode.HostUnreachable, f"the config server does not answer: {error}"
            ) from error
        step["conversationId"] = reply.get("conversationId")
        done = bool(reply.get("done"))
        answer = bytes(reply.get("payload") or b"").decode(errors="replace")
        await write({"login": {"payload": answer, "done": done}})
        if done and login.user is not None:
            return login.user
    raise CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")


def check_rights(user: User, watch: Watch) -> None:
    """Check that the user may read the stream; raises CommandError (13)."""
    namespace = watch.request.namespace
    database, _, collection = namespace.partition(".")
    target: Any = 1 if collection.startswith("$cmd") else collection
    command = {"aggregate": target, "pipeline": [{"$changeStream": {}}]}
    resource = stream_resource_of(namespace)
    require(user, resource, *STREAM_ACTIONS, database=database, command=command)


def _fields(line: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    fields = document.get("login") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise CommandError(
            ErrorCode.Unauthorized, f"the feed takes a login: send a line such as {_FORM} first"
        )
    return fields


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} of a login must be a string")
    return value
