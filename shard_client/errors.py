"""What can go wrong between two parties that speak the MongoDB wire protocol."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from shard_client.error_codes import (
    NON_RESUMABLE_CODES,
    NOT_PRIMARY_CODES,
    RESUMABLE_CODES,
    ErrorCode,
)
from shard_client.error_codes import code_name as _official_name

RESUMABLE_LABEL = "ResumableChangeStreamError"
NON_RESUMABLE_LABEL = "NonResumableChangeStreamError"


# Old drivers take these words for a change of whoever answers with them.
_STATE_CHANGES = {"not master": "(NOT_PRIMARY)", "node is recovering": "(NODE_IS_RECOVERING)"}

# What the error itself is made of, and what a member says of itself in any reply.
_NOT_EXTRA = frozenset(
    {
        *("ok", "errmsg", "code", "codeName", "errorLabels"),
        *("operationTime", "lastCommittedOpTime", "topologyVersion", "electionId"),
    }
)


class ProtocolError(Exception):
    """The peer broke the wire protocol and its connection ends (docs/protocol.md, section 1)."""


class NetworkError(ConnectionError):
    """The connection failed, timed out or was closed; the command's fate is unknown."""


class CommandError(Exception):
    """A command's ``ok: 0`` answer: one that a server gave, or one that we give.

    ``code`` is MongoDB's error code, ``message`` its ``errmsg``; ``code_name`` defaults to
    MongoDB's own name for the code, ``labels`` are the errorLabels, ``extra`` holds further
    fields of the reply that belong to the error.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        code_name: str | None = None,
        labels: Iterable[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = int(code)
        self.message = message
        self.code_name = code_name or _official_name(self.code)
        self.labels = frozenset(labels)
        self.extra = dict(extra or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.code} {self.code_name})"

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Self:
        """Build the error from a decoded ``ok: 0`` reply.

        Raises ProtocolError if its code, message or labels are not of the types they must be.
        """
        code, message = reply.get("code", 8), reply.get("errmsg", "the server gave no message")
        name, labels = reply.get("codeName"), reply.get("errorLabels", [])
        if not (
            isinstance(code, int)
            and isinstance(message, str)
            and isinstance(name, str | None)
            and isinstance(labels, list)
            and all(isinstance(label, str) for label in labels)
        ):
            raise ProtocolError("an error reply is malformed")
        return cls(
            code,
            message,
            code_name=name,
            labels=labels,
            extra={
                name: value
                for name, value in reply.items()
                if name not in _NOT_EXTRA and not name.startswith("$")
            },
        )

    def to_reply(self) -> dict[str, Any]:
        """Return the reply document, fields in the order that servers use."""
        reply: dict[str, Any] = {
            **self.extra,
            "ok": 0.0,
            "errmsg": self.message,
            "code": self.code,
            "codeName": self.code_name,
        }
        if self.labels:
            reply["errorLabels"] = sorted(self.labels)
        return reply

    def with_change_stream_label(self) -> Self:
        """Return the error as mongos labels it on a change stream (docs/protocol.md, section 4)."""
        labels = set(self.labels)
        if self.code in RESUMABLE_CODES:
            labels.add(RESUMABLE_LABEL)
        elif self.code in NON_RESUMABLE_CODES:
            labels.add(NON_RESUMABLE_LABEL)
        return type(self)(
            self.code, self.message, code_name=self.code_name, labels=labels, extra=self.extra
        )

    def without_state_change(self) -> Self:
        """Return the error as mongos hands it on (docs/protocol.md, section 4).

        That a shard's member is no primary or shuts down becomes HostUnreachable: drivers would
        take it for a change of the router, and leave it alone for a while.
        """
        if self.code not in NOT_PRIMARY_CODES:
            return self
        message = self.message
        for words, harmless in _STATE_CHANGES.items():
            message = message.replace(words, harmless)
        return type(self)(ErrorCode.HostUnreachable, message, labels=self.labels, extra=self.extra)
