"""Diagnostic commands of the embedded mongos; the config server answers most of them."""

import asyncio
import os
import platform
from typing import Any

from bson import Int64

from embedded.commands.handshake import hello_of_any_server
from embedded.mongos.request import RoutedRequest
from embedded.storage.bson_values import Document

_LONGEST_WAIT = 60.0

ON_CONFIG_SERVER = (
    "ping", "buildInfo", "buildinfo", "whatsmyuri", "getLog", "startSession",
    "refreshSessions", "saslStart", "saslContinue", "logout", "connectionStatus", "createUser",
    "dropUser", "usersInfo",
)  # fmt: skip
"""Commands to which a mongos and the config server give the same answers."""


async def on_config_server(request: RoutedRequest) -> Document:
    """Run the client's command on the config server.

    Raises:
        CommandError: the config server's error.
    """
    config = request.catalog.config.mongod
    return await config.execute(request.database, request.as_sent(), request.client)


async def hello(request: RoutedRequest) -> Document:
    """Return a mongos's reply to hello; a repeated ``topologyVersion`` waits first.

    Source: docs/protocol.md#wire-protocol.
    """
    config, process_id = request.catalog.config.mongod, request.state.process_id
    wait = request.command.get("maxAwaitTimeMS")
    known = request.command.get("topologyVersion")
    if wait is not None and known is not None and known.get("processId") == process_id:
        await asyncio.sleep(min(wait / 1000, _LONGEST_WAIT))
    is_hello = request.name == "hello"
    reply: dict[str, Any] = {"isWritablePrimary" if is_hello else "ismaster": True}
    reply["topologyVersion"] = {"processId": process_id, "counter": Int64(0)}
    common = hello_of_any_server(config, request.client, request.command)
    return reply | {"msg": "isdbgrid"} | common


async def server_status(request: RoutedRequest) -> Document:
    """Return a small part of a server's status."""
    config = request.catalog.config.mongod
    return {
        "host": platform.node(),
        "version": config.server_version.number,
        "process": "mongos",
        "pid": Int64(os.getpid()),
        "localTime": config.now(),
        "metrics": {"cursor": {"open": {"total": Int64(len(request.state.cursors))}}},
    }


async def command_line(request: RoutedRequest) -> Document:
    """Return the options of a mongos of this cluster."""
    config = request.catalog.config.host
    return {
        "argv": ["mongos", "--configdb", config],
        "parsed": {"sharding": {"configDB": config}},
    }
