"""The log lines of logins, with the ids and attributes of mongos 6.0."""

from collections.abc import Mapping
from typing import Any

import structlog

from shard_client.errors import CommandError

log = structlog.get_logger()

_LONGEST_NAME = 256


class LoginLog:
    """Logs how one client's logins end.

    Args:
        peer: the client's address and port.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._attempt: dict[str, Any] = {}

    def begun(self, database: str, command: Mapping[str, Any], *, speculative: bool) -> None:
        """Record the login that a client begins with ``saslStart`` or with a hello.

        Args:
            database: the database of the user.
            command: the fields of ``saslStart``; they need not be valid.
            speculative: whether they are part of a hello.
        """
        self._attempt = {
            "mechanism": str(command.get("mechanism"))[:_LONGEST_NAME],
            "speculative": speculative,
            "principalName": scram_user(command.get("payload")),
            "authenticationDatabase": database[:_LONGEST_NAME],
        }

    def succeeded(self, user: str, database: str) -> None:
        """Log that a client has logged in."""
        named = {"principalName": user, "authenticationDatabase": database}
        self._log("Authentication succeeded", 20250, **named)

    def failed(self, error: CommandError | None = None) -> None:
        """Log that a server has refused a login; None if it gave no reason."""
        reason = "no reason given" if error is None else f"{error.code_name}: {error.message}"
        self._log("Authentication failed", 20249, error=reason)

    def _log(self, event: str, number: int, **attributes: str) -> None:
        line = {**self._attempt, "remote": self._peer, "extraInfo": {}, **attributes}
        log.info(event, component="ACCESS", id=number, **line)


def scram_user(payload: object) -> str:
    """Return the name in a SCRAM client's first message (RFC 5802), empty if there is none."""
    if not isinstance(payload, bytes | str):
        return ""
    text = payload.decode(errors="replace") if isinstance(payload, bytes) else payload
    parts = text.split(",", 3)
    if len(parts) < 3 or not parts[2].startswith("n="):
        return ""
    return parts[2][2:].replace("=2C", ",").replace("=3D", "=")[:_LONGEST_NAME]
