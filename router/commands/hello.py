"""hello and its older names: the drivers' handshake and their monitors' awaitable check."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from bson.int64 import Int64
from bson.objectid import ObjectId

from router.commands.authentication import fields_of_hello
from router.commands.call import Call
from router.commands.client import Client
from router.commands.command import answers
from router.commands.reply_bodies import Answer
from router.parameter import MILLISECONDS
from router.request.field_checks import at_least_zero, of_type, wrong_type
from shard_client.errors import CommandError, ErrorCode
from shard_client.wire.compression import negotiate
from shard_client.wire.documents import encode
from shard_client.wire.frames import MAX_DOCUMENT_SIZE, MAX_MESSAGE_SIZE, MAX_WRITE_BATCH_SIZE

_MOST_BYTES = 512
_MOST_NAME_BYTES = 128
_WHERE = "in the client metadata document"
_REQUIRED = {"driver": ("name", "version"), "os": ("type",)}


def check_client_metadata(metadata: object) -> Mapping[str, Any]:
    """Check and return the ``client`` document of a hello, by MongoDB's handshake specification.

    Raises CommandError: it is not a document or has a field of the wrong type (14), is longer than
    512 bytes (185), lacks a field (183), or has an application name above 128 bytes (184).
    """
    if not isinstance(metadata, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch, "The client metadata document must be a document"
        )
    if len(encode(metadata)) > _MOST_BYTES:
        raise CommandError(
            ErrorCode.ClientMetadataDocumentTooLarge,
            f"The client metadata document must be less then or equal to {_MOST_BYTES}bytes",
        )
    for name, value in metadata.items():
        if name not in ("application", *_REQUIRED):
            continue
        if not isinstance(value, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"The '{name}' field is required to be a BSON document {_WHERE}",
            )
        for field in _REQUIRED.get(name, ()):
            if field not in value:
                raise _missing(f"field '{name}.{field}'")
            _check_text(f"{name}.{field}", value[field])
        if name == "application":
            _check_text("application.name", value.get("name", ""), _MOST_NAME_BYTES)
    for name in _REQUIRED:
        if name not in metadata:
            raise _missing(f"sub-document '{name}'")
    return metadata


def _missing(what: str) -> CommandError:
    message = f"Missing required {what} {_WHERE}"
    return CommandError(ErrorCode.ClientMetadataMissingField, message)


def _check_text(path: str, value: object, most_bytes: int | None = None) -> None:
    if not isinstance(value, str):
        raise CommandError(ErrorCode.TypeMismatch, f"The '{path}' field must be a string {_WHERE}")
    if most_bytes is not None and len(value.encode()) > most_bytes:
        raise CommandError(
            ErrorCode.ClientMetadataAppNameTooLarge,
            f"The '{path}' field must be less then or equal to {most_bytes} bytes {_WHERE}",
        )


_LONGEST_WAIT = 24 * 60 * 60.0


_at_once = partial(answers, while_quiescing=True, before_login=True)


@_at_once("hello", help="the version and limits of this server", api_versions=("1",))
@_at_once("isMaster", "ismaster", help="hello, by its former name")
async def hello(call: Call) -> Answer:
    """Answer as mongos does, with waiting and streaming on request
    (docs/protocol.md#wire-protocol).

    Raises CommandError: invalid fields or metadata, metadata sent twice, or the router shuts down.
    """
    command, process, client = call.command, call.process, call.client
    _accept_metadata(client, command)
    seen = _seen_version(command)
    if seen is not None:
        most_ms = at_least_zero(command, "hello", "maxAwaitTimeMS") or 0
        timeout = min(most_ms * MILLISECONDS, _LONGEST_WAIT)
        process.counters.awaiting_hellos += 1
        try:
            await process.server.topology.wait_beyond(seen, timeout)
        finally:
            process.counters.awaiting_hellos -= 1
    else:
        await process.server.topology.wait_beyond(None, 0)
    reply = {**_describe(call), **await fields_of_hello(call)}
    if not call.exhaust:
        return Answer(reply)
    if seen is None:
        raise CommandError(
            51763, "A hello/isMaster request with exhaust must specify 'maxAwaitTimeMS'"
        )
    following = {key: value for key, value in command.items() if key != "client"}
    following["topologyVersion"] = process.server.topology.document()
    return Answer(reply, next_command=following)


def _accept_metadata(client: Client, command: Mapping[str, Any]) -> None:
    metadata = command.get("client")
    if metadata is not None:
        if client.greeted:
            raise CommandError(
                ErrorCode.ClientMetadataCannotBeMutated,
                "The client metadata document may only be sent in the first hello",
            )
        client.metadata = check_client_metadata(metadata)
    client.greeted = True


def _seen_version(command: Mapping[str, Any]) -> dict[str, Any] | None:
    seen = command.get("topologyVersion")
    if (seen is None) != (at_least_zero(command, "hello", "maxAwaitTimeMS") is None):
        raise CommandError(
            51760,
            "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'"
            if seen is None
            else "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'",
        )
    if seen is None:
        return None
    if not isinstance(seen, Mapping):
        raise wrong_type("hello.topologyVersion", seen, "object")
    of_type(seen, "hello.topologyVersion", "processId", ObjectId, "objectId")
    counter = of_type(seen, "hello.topologyVersion", "counter", Int64, "long")
    if counter < 0:
        raise CommandError(51758, "topologyVersion must have a non-negative counter")
    return dict(seen)


def _describe(call: Call) -> dict[str, Any]:
    command, process = call.command, call.process
    parameters = process.settings.set_parameter
    primary = "isWritablePrimary" if call.name == "hello" else "ismaster"
    reply: dict[str, Any] = {
        primary: True,
        "msg": "isdbgrid",
        "topologyVersion": process.server.topology.document(),
    }
    if command.get("helloOk") is not None:
        reply["helloOk"] = True
    reply |= {
        "maxBsonObjectSize": MAX_DOCUMENT_SIZE,
        "maxMessageSizeBytes": MAX_MESSAGE_SIZE,
        "maxWriteBatchSize": MAX_WRITE_BATCH_SIZE,
        "localTime": process.now(),
        "logicalSessionTimeoutMinutes": int(parameters.localLogicalSessionTimeoutMinutes),
        "connectionId": call.client.connection_id,
        "maxWireVersion": process.server.identity.max_wire_version,
        "minWireVersion": 0,
    }
    offered = command.get("compression")
    if isinstance(offered, list):
        common = negotiate(offered, process.settings.net.compressors)
        if common:
            reply["compression"] = common
    return reply
