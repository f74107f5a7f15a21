"""The log lines of logins, with the ids and attributes of mongos 6.0, and their spans."""

from collections.abc import Mapping
from typing import Any

import structlog

from shard_client import spans
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

log = structlog.get_logger()

_LONGEST_NAME = 256
_MECHANISMS = frozenset({"SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509", "PLAIN", "GSSAPI"})


class LoginLog:
    """Logs how one client's logins end, and records each as a span.

    Args:
        peer: the client's address and port.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._attempt: dict[str, Any] = {}
        self._span: spans.Span | None = None

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
        self.ended()
        mechanism = str(command.get("mechanism"))
        self._span = spans.begin(
            "log in",
            {
                "db.system.name": "mongodb",
                "mergerouter.mechanism": mechanism if mechanism in _MECHANISMS else "other",
                "mergerouter.speculative": speculative,
            },
        )

    def succeeded(self, user: str, database: str) -> None:
        """Log that a client has logged in."""
        named = {"principalName": user, "authenticationDatabase": database}
        self._log("Authentication succeeded", 20250, **named)
        self._end()

    def failed(self, error: CommandError | None = None) -> None:
        """Log that a server has refused a login; None if it gave no reason."""
        reason = "no reason given" if error is None else f"{error.code_name}: {error.message}"
        self._log("Authentication failed", 20249, error=reason)
        self._end(error or CommandError(ErrorCode.AuthenticationFailed, reason))

    def ended(self) -> None:
        """End the span of a login that neither succeeded nor was refused, as abandoned."""
        if self._span is not None:
            self._span.set_attribute("mergerouter.abandoned", True)
            self._end()

    def _end(self, error: CommandError | None = None) -> None:
        if self._span is not None:
            spans.end(self._span, error)
            self._span = None

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
