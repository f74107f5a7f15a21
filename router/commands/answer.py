"""What a command's function returns, and how an answer becomes a reply body."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shard_client.errors import CommandError

if TYPE_CHECKING:
    from router.peers.peers import Peer

# mongos refuses a read concern before it knows any time: that reply carries none.
_REFUSED_READ_CONCERN = "Command aggregate does not support { readConcern"


@dataclass(frozen=True, slots=True)
class Answer:
    """A decoded answer without ``ok`` and times, which are added when it is sent.

    ``next_command`` asks for another run of the command as it is given here: its answer follows
    this one without a request, as a streaming hello does (docs/protocol.md, section 1).
    """

    fields: Mapping[str, Any]
    next_command: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """A whole reply body as slices to be joined: nothing in it was decoded."""

    parts: list[bytes]


@dataclass(frozen=True, slots=True)
class PassThrough:
    """The command is not ours: the client's message goes to the upstream as it came.

    ``added`` are fields that a fail point puts into the upstream's reply. ``refusal`` is what the
    client gets if the upstream does not know the command (59).
    """

    added: Mapping[str, Any] = field(default_factory=dict)
    refusal: CommandError | None = None


PASS_THROUGH = PassThrough()


@dataclass(frozen=True, slots=True)
class ToWorker:
    """The command is about a cursor of another worker, which gets the client's message.

    ``or_upstream`` tells that it goes to the upstream if that worker does not know the cursor.
    """

    peer: "Peer"
    cursor_id: int
    or_upstream: bool = False


AnyAnswer = Answer | RawAnswer | PassThrough | ToWorker


def reply_document(fields: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply in mongos's order: the fields, ok, $clusterTime and operationTime."""
    if "ok" in fields:
        return {**fields, **times}
    return {**fields, "ok": 1.0, **times}


def error_document(error: CommandError, times: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error's reply in mongos's order: labels come after the times."""
    reply = error.to_reply()
    labels = reply.pop("errorLabels", None)
    if not error.message.startswith(_REFUSED_READ_CONCERN):
        reply.update(times)
    if labels is not None:
        reply["errorLabels"] = labels
    return reply
