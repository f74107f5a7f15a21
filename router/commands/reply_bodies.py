"""The results of command functions, and their conversion to reply bodies."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Any, Literal

from bson.timestamp import Timestamp

from router.bson_text import LONGEST, shortened
from router.stream.readers.log_reader import Batch
from shard_client.bson.values import BOOLEAN
from shard_client.errors import NOT_PRIMARY_CODES, CommandError, ErrorCode
from shard_client.remote_cursor.cursor_reply import heads_size
from shard_client.wire.bson_slices import find, iter_elements
from shard_client.wire.frames import BODY_OFFSET

_LONGEST_MESSAGE = 4 * LONGEST

_int32 = Struct("<i")
_int64 = Struct("<q")
_timestamp = Struct("<II")
_OK_FIELD = b"\x01ok\0" + Struct("<d").pack(1.0)

# Old drivers take these words in a message for a state change of the server that sent it.
_STATE_CHANGES = {"not master": "(NOT_PRIMARY)", "node is recovering": "(NODE_IS_RECOVERING)"}


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

    ``refusal`` is the error that the client gets if the upstream does not know the command (59).
    """

    refusal: CommandError | None = None


PASS_THROUGH = PassThrough()

AnyAnswer = Answer | RawAnswer | PassThrough


def reply_document(fields: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply in mongos's order: fields, ok, $clusterTime and operationTime."""
    return {**fields, "ok": fields.get("ok", 1.0), **times}


def error_document(error: CommandError, times: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error's reply in mongos's order: labels come after the times."""
    reply = error.to_reply()
    reply["errmsg"] = shortened(error.message, _LONGEST_MESSAGE)
    labels = reply.pop("errorLabels", None)
    reply.update(times)
    if labels is not None:
        reply["errorLabels"] = labels
    return reply


def code_of(reply: bytes) -> int | None:
    """Return the error code in another server's reply, a whole frame; None if it has none."""
    element = find(reply, b"code", BODY_OFFSET)
    if element is None:
        return None
    return int.from_bytes(reply[element.start : element.end], "little")


def without_state_change(error: CommandError) -> CommandError:
    """Return an error of a shard's member as mongos passes it on (docs/protocol.md#opening).

    That of a member that is not a primary or is shutting down becomes HostUnreachable. Otherwise
    drivers would take it for a state change of the router and avoid the router for a while.
    """
    if error.code not in NOT_PRIMARY_CODES:
        return error
    message = error.message
    for words, harmless in _STATE_CHANGES.items():
        message = message.replace(words, harmless)
    return CommandError(ErrorCode.HostUnreachable, message, labels=error.labels, extra=error.extra)


def build_cursor_reply(
    batch_name: Literal["firstBatch", "nextBatch"],
    batch: Batch,
    cursor_id: int,
    namespace: str,
    times: tuple[bytes | None, Timestamp | None] = (None, None),
    *,
    identity_first: bool = False,
) -> RawAnswer:
    """Return the reply body that mongos would send, as parts for the caller to join.

    The id is 0 if ``batch`` is closed. ``times`` are the $clusterTime, a raw document, and the
    operationTime. Empty and None fields are omitted. Fields have the order that mongos uses: id and
    ns come first in a getMore's reply and last in an aggregate's, unless ``identity_first`` is set.
    """
    cluster_time, operation_time = times
    events, pbrt, count = batch.events, batch.pbrt, len(batch.events)
    batch_size = 5 + batch.size + heads_size(count)
    batch_head = b"\x04%b\0%b" % (batch_name.encode(), _int32.pack(batch_size))
    token = b"\x03postBatchResumeToken\0" + pbrt if pbrt else b""
    ns = namespace.encode()
    identity = b"\x12id\0%b\x02ns\0%b%b\0" % (
        _int64.pack(0 if batch.closed else cursor_id),
        _int32.pack(len(ns) + 1),
        ns,
    )
    if identity_first or batch_name == "nextBatch":
        before, after = identity + batch_head, b"\0" + token + b"\0"
    else:
        before, after = batch_head, b"\0" + token + identity + b"\0"
    cursor_size = 4 + len(before) + (batch_size - 5) + len(after)
    rest = [_OK_FIELD]
    if cluster_time is not None:
        rest.append(b"\x03$clusterTime\0" + cluster_time)
    if operation_time is not None:
        packed = _timestamp.pack(operation_time.inc, operation_time.time)
        rest.append(b"\x11operationTime\0" + packed)
    rest.append(b"\0")
    tail = b"".join(rest)
    body_size = 4 + 8 + cursor_size + len(tail)
    head = b"%b\x03cursor\0%b%b" % (_int32.pack(body_size), _int32.pack(cursor_size), before)
    parts = [head] * (2 * count + 2)
    parts[1:-1:2] = _element_heads(count)
    parts[2:-1:2] = events
    parts[-1] = after + tail
    return parts


_heads: list[bytes] = []


def _element_heads(count: int) -> list[bytes]:
    """Return the prefix of each of ``count`` documents in an array: type, index, zero byte."""
    if len(_heads) < count:
        _heads.extend(b"\x03%d\0" % index for index in range(len(_heads), count))
    return _heads[:count]


_ENDS_TRANSACTION = frozenset({"abortTransaction", "commitTransaction"})
_STREAM_COMMANDS = frozenset({"aggregate", "getMore"})
_MOST_FIELDS = 1000
_AT_SHUTDOWN = {
    ErrorCode.ShutdownInProgress: "The server is shutting down",
    ErrorCode.InterruptedAtShutdown: "interrupted at shutdown",
}


def with_retry_labels(error: CommandError, name: str, body: bytes) -> CommandError:
    """Return ``error`` with the labels that make a driver retry, as with a mongos that shuts down.

    A driver retries writes and transactions, and resumes a change stream, after a network error. It
    adds the labels to its own network errors itself; from the router, in the mongos's place, it
    takes them from the reply. Source: the drivers' specifications.

    ``error`` is why the command was not sent, or not finished. Only the first thousand fields of
    the raw command ``body`` are inspected. Raises ProtocolError: these are malformed.
    """
    if name in _STREAM_COMMANDS:  # a getMore may be that of a stream whose cursor is gone
        error = error.with_change_stream_label()
    in_transaction = has_number = False
    for element in islice(iter_elements(body), _MOST_FIELDS):
        if element.name == b"txnNumber":
            has_number = True
        elif element.name == b"autocommit" and element.type == BOOLEAN:
            in_transaction = not body[element.start]
    if name in _ENDS_TRANSACTION or (has_number and not in_transaction):
        return error.with_labels("RetryableWriteError")
    if in_transaction:
        return error.with_labels("TransientTransactionError")
    return error.with_labels()


def at_shutdown(code: ErrorCode, name: str, body: bytes) -> CommandError:
    """Return the error of a command that the router does not run (91), or has ended (11600).

    A client can run it again elsewhere or later; ``name`` and ``body`` as in ``with_retry_labels``.
    """
    return with_retry_labels(CommandError(code, _AT_SHUTDOWN[code]), name, body)
