"""Diagnostic commands, with which drivers and shells inspect a server."""

import os
import platform
from typing import Any

from bson.int64 import Int64

from embedded.change_streams import explain_change_stream, is_change_stream
from embedded.commands.request import Request, command
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError


@command("ping")
async def ping(_request: Request) -> Document:
    """Return ``ok``."""
    return {}


@command("buildInfo", "buildinfo")
async def build_info(request: Request) -> Document:
    """Return the version that this server emulates."""
    version = request.mongod.version
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


@command("hostInfo")
async def host_info(_request: Request) -> Document:
    """Describe the machine."""
    system = {"hostname": platform.node(), "cpuAddrSize": 64, "numCores": os.cpu_count()}
    return {"system": system, "os": {"type": platform.system(), "name": platform.platform()}}


@command("getParameter")
async def get_parameter(request: Request) -> Document:
    """Return the few parameters that clients read."""
    version = ".".join(request.mongod.version.split(".")[:2])
    known: dict[str, Any] = {
        "featureCompatibilityVersion": {"version": version},
        "enableTestCommands": False,
        "periodicNoopIntervalSecs": int(request.mongod.noop_interval),
        "authenticationMechanisms": [],
    }
    if request.command["getParameter"] == "*":
        return known
    found = {name: known[name] for name in request.command if name in known}
    if not found:
        raise CommandError(72, "no option found to get", code_name="InvalidOptions")
    return found


@command("setParameter", "setFeatureCompatibilityVersion", "fsync", "logRotate", "profile")
async def accept(_request: Request) -> Document:
    """Accept a command that has no effect on a server without files."""
    return {}


@command("serverStatus")
async def server_status(request: Request) -> Document:
    """Return a small part of a server's status."""
    mongod = request.mongod
    host, port = mongod.address
    return {
        "host": f"{host}:{port}",
        "version": mongod.version,
        "process": "mongod",
        "pid": Int64(os.getpid()),
        "localTime": mongod.now(),
        "connections": {"current": mongod.connections, "available": 10_000},
        "repl": {"setName": mongod.set_name, "isWritablePrimary": True, "hosts": [host]},
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


@command("currentOp")
async def current_op(_request: Request) -> Document:
    """Return no operations, because none run for long."""
    return {"inprog": []}


@command("getDefaultRWConcern")
async def default_concerns(_request: Request) -> Document:
    """Return the default concerns of a new cluster."""
    return {
        "defaultReadConcern": {"level": "local"},
        "defaultWriteConcern": {"w": "majority", "wtimeout": 0},
    }


@command("explain")
async def explain(request: Request) -> Document:
    """Return a plan of COLLSCAN, or IDHACK for a condition on ``_id``, without running it."""
    explained = request.field("explain", dict, {})
    name = next(iter(explained), "")
    if name not in ("find", "aggregate", "count", "distinct", "update", "delete", "findAndModify"):
        raise CommandError(59, f"Explain failed due to unknown command: {name}")
    if name == "aggregate" and is_change_stream(explained):
        return explain_change_stream(request.mongod, request.database, explained)
    condition = explained.get("filter") or explained.get("query") or {}
    stage = "IDHACK" if "_id" in condition else "COLLSCAN"
    planner: Document = {
        "namespace": f"{request.database}.{explained[name]}",
        "parsedQuery": condition,
        "winningPlan": {"stage": stage},
        "rejectedPlans": [],
    }
    return {"explainVersion": "1", "queryPlanner": planner, "command": explained}


@command("collStats", "collstats")
async def collection_stats(request: Request) -> Document:
    """Return the numbers of a collection's documents and indexes."""
    collection = request.collection
    if collection is None:
        return {"ns": request.ns, "count": 0, "nindexes": 0, "size": 0}
    return {
        "ns": request.ns,
        "count": len(collection),
        "size": 0,
        "nindexes": len(collection.indexes),
        "capped": bool(collection.options.get("capped")),
    }


@command("dbStats", "dbstats")
async def database_stats(request: Request) -> Document:
    """Return the numbers of a database's collections, documents and indexes."""
    collections = request.mongod.catalog.collections(request.database)
    return {
        "db": request.database,
        "collections": len(collections),
        "objects": sum(map(len, collections)),
        "indexes": sum(len(each.indexes) for each in collections),
    }
