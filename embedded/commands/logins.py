"""Logins on a member, and who is logged in (docs/security.md)."""

from embedded.commands.request import Request, command
from embedded.storage.bson_values import Document


@command("saslStart")
async def sasl_start(request: Request) -> Document:
    """Begin a login."""
    logins = request.mongod.access.logins
    return logins.start(request.client, request.database, request.command)


@command("saslContinue")
async def sasl_continue(request: Request) -> Document:
    """Go on with a login."""
    logins = request.mongod.access.logins
    return logins.go_on(request.client, request.database, request.command)


@command("authenticate")
async def authenticate(request: Request) -> Document:
    """Log in with a certificate."""
    logins = request.mongod.access.logins
    return logins.authenticate(request.client, request.database, request.command)


@command("logout")
async def log_out(request: Request) -> Document:
    """End the login of this connection."""
    return request.mongod.access.logins.log_out(request.client, request.database)


@command("connectionStatus")
async def connection_status(request: Request) -> Document:
    """Return the user that is logged in, with its roles and, on request, its privileges."""
    return request.mongod.access.logins.status(request.client, request.command)


@command("whatsmyuri")
async def whats_my_uri(request: Request) -> Document:
    """Return the client's address."""
    return {"you": request.client.peer}
