"""Logins on the embedded mongos, and who is logged in (docs/security.md)."""

from embedded.mongos.request import Request
from embedded.storage.bson_values import Document


async def sasl_start(request: Request) -> Document:
    """Begin a login."""
    logins = request.state.access.logins
    return logins.start(request.client, request.database, request.command)


async def sasl_continue(request: Request) -> Document:
    """Go on with a login."""
    logins = request.state.access.logins
    return logins.go_on(request.client, request.database, request.command)


async def authenticate(request: Request) -> Document:
    """Log in with a certificate."""
    logins = request.state.access.logins
    return logins.authenticate(request.client, request.database, request.command)


async def log_out(request: Request) -> Document:
    """End the login of this connection."""
    return request.state.access.logins.log_out(request.client, request.database)


async def connection_status(request: Request) -> Document:
    """Return the user that is logged in, with its roles and, on request, its privileges."""
    return request.state.access.logins.status(request.client, request.command)
