"""Logins of clients: the commands of SASL conversations, relayed to a server that knows the users.

Without authorization these commands pass through to the upstream, as any other.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from router.commands.call import Call
from router.commands.command import answers
from router.commands.reply_bodies import PASS_THROUGH, Answer, AnyAnswer
from router.request.field_checks import GENERIC_FIELDS
from shard_client.errors import CommandError
from shard_client.wire.authentication import X509

_OF_HELLO = ("saslSupportedMechs", "speculativeAuthenticate")


@answers("saslStart", help="begin a login", before_login=True, api_versions=("1",))
@answers("saslContinue", help="continue a login", before_login=True, api_versions=("1",))
async def sasl_step(call: Call) -> AnyAnswer:
    """Relay saslStart or saslContinue with all its own fields, which the server checks in order.

    Raises CommandError: the server's error; a refused login is answered late (authFailedDelayMs).
    """
    if call.client.login is None:
        return PASS_THROUGH
    command = {name: value for name, value in call.command.items() if name not in GENERIC_FIELDS}
    return Answer(await call.client.login.converse(call.upstream_link, call.database, command))


@answers("authenticate", help="log in by certificate", before_login=True, api_versions=("1",))
async def authenticate(call: Call) -> AnyAnswer:
    """Log in by the certificate that the client has presented (MONGODB-X509, docs/security.md).

    Raises CommandError: the certificate stands for no user, or the command is malformed.
    """
    login = call.client.login
    if login is None:
        return PASS_THROUGH
    return Answer(await login.present(call.database, call.command))


@answers("logout", help="end the login")
async def log_out(call: Call) -> AnyAnswer:
    """End the login of this connection."""
    if call.client.login is not None:
        await call.client.login.log_out(call.upstream_link, call.database)
    return Answer({})


@answers("connectionStatus", help="who is logged in", before_login=True)
async def connection_status(call: Call) -> AnyAnswer:
    """Return the user that is logged in, with its roles and, on request, its privileges."""
    user = call.user
    if user is not None and call.upstream is not None:
        return PASS_THROUGH
    info: dict[str, Any] = {"authenticatedUsers": [], "authenticatedUserRoles": []}
    if user is not None:
        info["authenticatedUsers"].append({"user": user.name.user, "db": user.name.database})
        info["authenticatedUserRoles"].extend(user.roles)
    if call.command.get("showPrivileges"):
        info["authenticatedUserPrivileges"] = [] if user is None else user.privileges.listed()
    return Answer({"authInfo": info})


async def fields_of_hello(call: Call) -> Mapping[str, Any]:
    """Return what a hello's reply says about logins; nothing without authorization.

    Raises CommandError: a field is malformed.
    """
    login = call.client.login
    asked = {name: call.command[name] for name in _OF_HELLO if name in call.command}
    if login is None or not asked:
        return {}
    speculative = asked.get("speculativeAuthenticate")
    if not isinstance(speculative, Mapping) or speculative.get("mechanism") != X509:
        return await login.hello(call.upstream_link, asked)
    del asked["speculativeAuthenticate"]
    answer = await login.hello(call.upstream_link, asked) if asked else {}
    with suppress(CommandError):  # it leaves no trace in the reply, as with mongos
        answer["speculativeAuthenticate"] = await login.present(
            speculative.get("db"), speculative, speculative=True
        )
    return answer
