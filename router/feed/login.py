"""A feed client's login in lines of JSON: a SCRAM conversation, or the client's certificate.

A conversation is relayed to the config server, so that the router sees no password; a certificate
is checked by the router (docs/feed.md#login).
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from router.access.authorization import require
from router.access.login import Login
from router.access.users import User
from router.feed.watch import Watch
from router.privileges import STREAM_ACTIONS, stream_resource_of
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.authentication import EXTERNAL, X509
from shard_client.wire.tls import Certificate

_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-1")
_MOST_STEPS = 4
_FORM = '{"login": {"mechanism": "SCRAM-SHA-256", "payload": "n,,n=USER,r=NONCE"}}'

ReadLine = Callable[[], Awaitable[bytes]]
WriteLine = Callable[[Mapping[str, Any]], Awaitable[None]]


async def log_in(
    login: Login,
    read: ReadLine,
    write: WriteLine,
    *,
    certificate: Certificate | None = None,
    own: Certificate | None = None,
) -> User:
    """Let a client log in, by a SCRAM conversation or by its certificate; return its user.

    Args:
        login: the state of the client's login.
        read: returns the client's next line, empty at its end.
        write: sends the client a document as a line.
        certificate: the client's certificate, which the handshake has checked; None without one.
        own: the router's certificate; None without TLS.

    Raises:
        ValueError: a line is no login.
        CommandError: 13, the client does not log in; or the login is refused.
    """
    first = _fields(await read())
    mechanism = _text(first, "mechanism")
    try:
        if mechanism == X509:
            return await _present(login, write, first, certificate, own)
        if mechanism in _SCRAM:
            return await _converse(login, read, write, first)
    except NetworkError as error:
        raise CommandError(
            ErrorCode.HostUnreachable, f"the config server does not answer: {error}"
        ) from error
    raise ValueError(f"mechanism must be one of {', '.join((*_SCRAM, X509))}")


async def _present(
    login: Login,
    write: WriteLine,
    first: Mapping[str, Any],
    certificate: Certificate | None,
    own: Certificate | None,
) -> User:
    """Log in by the client's certificate; raises ValueError, CommandError, NetworkError."""
    step: dict[str, Any] = {"authenticate": 1, "mechanism": X509}
    if "user" in first:
        step["user"] = _text(first, "user")
    await login.present(certificate, own, _text(first, "authSource", EXTERNAL), step)
    await write({"login": {"payload": "", "done": True}})
    return _user_of(login)


async def _converse(
    login: Login, read: ReadLine, write: WriteLine, first: Mapping[str, Any]
) -> User:
    """Relay a SCRAM conversation; raises ValueError, CommandError, NetworkError."""
    database = _text(first, "authSource", "admin")
    reply: Mapping[str, Any] = {}
    step: dict[str, Any] = {
        "saslStart": 1,
        "mechanism": first["mechanism"],
        "payload": _text(first, "payload").encode(),
        "options": {"skipEmptyExchange": True},
    }
    for number in range(_MOST_STEPS):
        if number:
            payload = _text(_fields(await read()), "payload").encode()
            conversation = reply.get("conversationId")
            step = {"saslContinue": 1, "conversationId": conversation, "payload": payload}
        reply = await login.converse(None, database, step)
        done = bool(reply.get("done"))
        answer = bytes(reply.get("payload") or b"").decode(errors="replace")
        await write({"login": {"payload": answer, "done": done}})
        if done:
            return _user_of(login)
    raise _refused()


def _user_of(login: Login) -> User:
    """Return the user that has just logged in; raises CommandError if it was dropped meanwhile."""
    if login.user is None:
        raise _refused()
    return login.user


def _refused() -> CommandError:
    return CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")


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
            ErrorCode.Unauthorized, f"the feed requires a login: send a line such as {_FORM} first"
        )
    return fields


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} of a login must be a string")
    return value
