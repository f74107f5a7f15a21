"""Diagnostic commands, with which drivers and shells inspect a server."""

import os

from bson.int64 import Int64

from embedded.commands.request import Request, command
from embedded.storage.bson_values import Document


@command("ping")
async def ping(_request: Request) -> Document:
    """Return ``ok``."""
    return {}


@command("buildInfo", "buildinfo")
async def build_info(request: Request) -> Document:
    """Return the version that this server emulates."""
    version = request.mongod.server_version.number
    numbers = [int(part) for part in version.split(".")]
    return {
        "version": version,
        "gitVersion": "embedded",
        "modules": [],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": [*numbers, 0],
        "bits": 64,
        "debug": False,
        "maxBsonObjectSize": 16_777_216,
        "storageEngines": ["ephemeralForTest"],
    }


@command("serverStatus")
async def server_status(request: Request) -> Document:
    """Return a small part of a server's status."""
    mongod = request.mongod
    host, port = mongod.address
    return {
        "host": f"{host}:{port}",
        "version": mongod.server_version.number,
        "process": "mongod",
        "pid": Int64(os.getpid()),
        "localTime": mongod.now(),
        "connections": {"current": mongod.connections, "available": 10_000},
        "repl": {"setName": mongod.name, "isWritablePrimary": True, "hosts": [host]},
        "storageEngine": {"name": "ephemeralForTest", "persistent": False},
        "metrics": {"cursor": {"open": {"total": Int64(len(mongod.cursors))}}},
        "oplog": {"entries": len(mongod.oplog)},
    }


@command("getLog")
async def get_log(request: Request) -> Document:
    """Return an empty log."""
    if request.command["getLog"] == "*":
        return {"names": ["global", "startupWarnings"]}
    return {"totalLinesWritten": 0, "log": []}
