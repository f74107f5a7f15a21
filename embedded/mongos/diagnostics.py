"""Diagnostic commands of the embedded mongos."""

import asyncio
import os
import platform
from datetime import UTC, datetime
from typing import Any

from bson import Int64

from embedded.mongos.request import Request
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError
from shard_client.wire.compression import negotiate
from shard_client.wire.frames import MAX_DOCUMENT_SIZE, MAX_MESSAGE_SIZE, MAX_WRITE_BATCH_SIZE

WIRE_VERSION_BY_TOKEN_VERSION = {1: 17, 2: 27}
VERSION_BY_TOKEN_VERSION = {1: [6, 0, 15, 0], 2: [8, 2, 0, 0]}
_LONGEST_WAIT = 60.0


async def hello(request: Request) -> Document:
    """Return a mongos's reply to hello; a repeated ``topologyVersion`` waits first.

    Source: docs/protocol.md#wire-protocol.
    """
    identity = request.state.identity
    wait = request.command.get("maxAwaitTimeMS")
    known = request.command.get("topologyVersion")
    if wait is not None and known is not None and known.get("processId") == identity.process_id:
        await asyncio.sleep(min(wait / 1000, _LONGEST_WAIT))
    is_hello = request.name == "hello"
    reply: dict[str, Any] = {"isWritablePrimary" if is_hello else "ismaster": True}
    reply |= {
        "msg": "isdbgrid",
        "topologyVersion": {"processId": identity.process_id, "counter": Int64(0)},
        "maxBsonObjectSize": MAX_DOCUMENT_SIZE,
        "maxMessageSizeBytes": MAX_MESSAGE_SIZE,
        "maxWriteBatchSize": MAX_WRITE_BATCH_SIZE,
        "localTime": datetime.fromtimestamp(request.now(), UTC),
        "logicalSessionTimeoutMinutes": 30,
        "connectionId": request.client.connection_id,
        "maxWireVersion": WIRE_VERSION_BY_TOKEN_VERSION[identity.token_version],
        "minWireVersion": 0,
    }
    if not is_hello and request.command.get("helloOk"):
        reply["helloOk"] = True
    compressors = negotiate(request.command.get("compression") or ())
    if compressors:
        reply["compression"] = compressors
    reply |= request.state.access.logins.hello(request.client, request.command)
    return reply


async def ping(request: Request) -> Document:
    """Return ``ok``."""
    return {}


async def build_info(request: Request) -> Document:
    """Return the version of MongoDB that this endpoint emulates."""
    numbers = VERSION_BY_TOKEN_VERSION[request.state.identity.token_version]
    return {
        "version": ".".join(str(number) for number in numbers[:3]),
        "gitVersion": "mergerouter-embedded",
        "modules": ["mergerouter-embedded"],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": numbers,
        "bits": 64,
        "debug": False,
        "maxBsonObjectSize": MAX_DOCUMENT_SIZE,
    }


async def whats_my_uri(request: Request) -> Document:
    """Return the client's address."""
    return {"you": request.client.peer}


async def server_status(request: Request) -> Document:
    """Return a small part of a server's status."""
    numbers = VERSION_BY_TOKEN_VERSION[request.state.identity.token_version]
    return {
        "host": platform.node(),
        "version": ".".join(str(number) for number in numbers[:3]),
        "process": "mongos",
        "pid": Int64(os.getpid()),
        "localTime": datetime.fromtimestamp(request.now(), UTC),
        "metrics": {"cursor": {"open": {"total": Int64(len(request.state.cursors))}}},
    }


async def command_line(request: Request) -> Document:
    """Return the options of a mongos of this cluster."""
    config = request.catalog.config.host
    return {
        "argv": ["mongos", "--configdb", config],
        "parsed": {"sharding": {"configDB": config}},
    }


async def get_parameter(request: Request) -> Document:
    """Return server parameters.

    Raises:
        CommandError: 72 InvalidOptions if none of the requested parameters exists.
    """
    known = {
        "featureCompatibilityVersion": {"version": "6.0"},
        "enableTestCommands": False,
        "logLevel": 0,
    }
    everything = request.command["getParameter"] == "*"
    found = {name: v for name, v in known.items() if everything or name in request.command}
    if not found:
        raise CommandError(72, "no option found to get", code_name="InvalidOptions")
    return dict(found)


async def host_info(request: Request) -> Document:
    """Describe the machine."""
    return {
        "system": {"currentTime": datetime.fromtimestamp(request.now(), UTC),
                   "hostname": platform.node(), "numCores": os.cpu_count()},
        "os": {"type": platform.system(), "name": platform.platform(), "version": ""},
        "extra": {},
    }  # fmt: skip


async def get_log(request: Request) -> Document:
    """Return no log lines; they go to standard output."""
    if request.command["getLog"] == "*":
        return {"names": ["global", "startupWarnings"]}
    return {"totalLinesWritten": 0, "log": []}


async def current_operations(request: Request) -> Document:
    """Return no operations, because none run for long."""
    return {"inprog": []}


async def is_db_grid(request: Request) -> Document:
    """Confirm that this is a mongos."""
    return {"isdbgrid": 1, "hostname": platform.node()}


async def not_through_mongos(request: Request) -> Document:
    """Refuse a command of replica sets, with mongos's message."""
    raise CommandError(
        0, f"{request.name} is not supported through mongos", extra={"info": "mongos"}
    )
