"""MONGODB-X509: the user that a client's certificate stands for, checked as mongos does it."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from router.access.users import UserName
from router.request.field_errors import missing_field
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.wire.authentication import EXTERNAL, X509
from shard_client.wire.tls import Certificate


def is_certificate_login(command: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a hello's speculative login is by certificate."""
    return isinstance(command, Mapping) and command.get("mechanism") == X509


def user_of_certificate(
    certificate: Certificate | None,
    own: Certificate | None,
    database: object,
    command: Mapping[str, Any],
) -> UserName:
    """Return the user whose name is the subject of the client's certificate.

    Args:
        certificate: the client's certificate, which the handshake has checked; None without one.
        own: the certificate that the router shows to servers, by whose subject members of the
            cluster are recognised; None without TLS.
        database: the database of the command.
        command: the fields of ``authenticate``.

    Raises:
        CommandError: mongos's error for a login that is malformed or refused.
    """
    if "mechanism" not in command:
        raise missing_field("authenticate.mechanism")
    if command["mechanism"] != X509:
        raise CommandError(ErrorCode.BadValue, f"Unsupported mechanism: {command['mechanism']}")
    if database != EXTERNAL:
        raise CommandError(
            ErrorCode.ProtocolError,
            "X.509 authentication must always use the $external database.",
        )
    if certificate is None or not certificate.subject:
        raise CommandError(
            ErrorCode.AuthenticationFailed, "No verified subject name available from client"
        )
    if command.get("user", certificate.subject) != certificate.subject:
        raise CommandError(
            ErrorCode.AuthenticationFailed,
            "There is no x.509 client certificate matching the user.",
        )
    if own is not None and own.membership and certificate.membership == own.membership:
        raise CommandError(
            ErrorCode.AuthenticationFailed,
            "The provided certificate can only be used for cluster authentication, not client "
            "authentication: its organisation, units and domain components are those of the "
            "cluster's members",
        )
    return UserName(certificate.subject, EXTERNAL)
