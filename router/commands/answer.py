"""The results of command functions, and their conversion to reply bodies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.bson_text import LONGEST, shortened
from shard_client.errors import CommandError

_LONGEST_MESSAGE = 4 * LONGEST

# mongos refuses a read concern before it knows any time, so that reply carries no times.
_REFUSED_READ_CONCERN = "Command aggregate does not support { readConcern"


@dataclass(frozen=True, slots=True)
class Answer:
    """A decoded answer; sending it adds the times, and ``ok`` if that is absent.

    ``next_command`` is the document for another run of the command. The answer of that run follows
    this one without a request, as for a streaming hello (docs/protocol.md#wire-protocol).
    """

    fields: Mapping[str, Any]
    next_command: Mapping[str, Any] | None = None


RawAnswer = list[bytes]
"""A whole reply body as slices to join, of which the first has its length."""


@dataclass(frozen=True, slots=True)
class PassThrough:
    """A request to relay the client's message unchanged to the upstream.

    ``added`` holds the fields that a fail point adds to the upstream's reply. ``refusal`` is the
    error that the client gets if the upstream does not know the command (59).
    """

    added: Mapping[str, Any] = field(default_factory=dict)
    refusal: CommandError | None = None


PASS_THROUGH = PassThrough()


AnyAnswer = Answer | RawAnswer | PassThrough


def reply_document(fields: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply in mongos's order: fields, ok, $clusterTime and operationTime."""
    if "ok" in fields:
        return {**fields, **times}
    return {**fields, "ok": 1.0, **times}


def error_document(error: CommandError, times: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error's reply in mongos's order: labels come after the times."""
    reply = error.to_reply()
    reply["errmsg"] = shortened(error.message, _LONGEST_MESSAGE)
    labels = reply.pop("errorLabels", None)
    if not error.message.startswith(_REFUSED_READ_CONCERN):
        reply.update(times)
    if labels is not None:
        reply["errorLabels"] = labels
    return reply
