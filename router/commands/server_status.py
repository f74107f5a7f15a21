"""serverStatus: mongos's counters, as far as they apply to the router."""

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from bson.int64 import Int64

from router.allocator import resident_bytes
from router.commands.call import Call
from router.commands.command import UNKNOWN, answers
from router.commands.other_workers import ask_other_workers
from router.commands.reply_bodies import Answer
from router.commands.serving_process import ServingProcess
from router.counters.process_counters import Counters
from router.counters.status_sums import sum_statuses
from shard_client.wire.connection import format_address

_MOST_USERS = 100
_KINDS = {
    "insert": "insert", "query": "find", "update": "update", "delete": "delete",
    "getmore": "getMore",
}  # fmt: skip
_TRANSACTIONS = (
    "currentOpen", "currentActive", "currentInactive", "totalStarted", "totalCommitted",
    "totalAborted", "totalContactedParticipants", "totalParticipantsAtCommit",
    "totalRequestsTargeted",
)  # fmt: skip
_ASSERTS = ("regular", "warning", "msg", "user", "tripwire", "rollovers")
_ADDED = frozenset({"ok", "$clusterTime", "operationTime"})


@answers("serverStatus", help="counters of this process", action="serverStatus")
async def server_status(call: Call) -> Answer:
    """Report connections, traffic, cursors and memory, summed over all workers."""
    reply = own_status(call.process, [stream async for stream in described_streams(call.process)])
    for section, wanted in call.command.items():
        if section in reply and wanted in (0, False):
            del reply[section]
    statuses = [reply, *await ask_other_workers(call)]
    reply = sum_statuses([{k: v for k, v in each.items() if k not in _ADDED} for each in statuses])
    reply.get("mergerouter", {}).get("workers", []).sort(key=itemgetter("worker"))
    return Answer(reply)


async def described_streams(process: ServingProcess) -> AsyncIterator[dict[str, Any]]:
    """Yield the descriptions of this process's streams; other tasks run between two of them."""
    for stream in process.cursors.describe_streams():
        yield stream
        await asyncio.sleep(0)


def own_status(
    process: ServingProcess, streams: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the status of this process alone, with the descriptions of its ``streams``."""
    cursors, counters = process.cursors, process.counters
    config = process.settings.sharding.config_db
    return {
        "host": f"{process.server.host}:{process.server.port}",
        "version": process.server.identity.version,
        "process": "mongos",
        "pid": Int64(os.getpid() if process.peers is None else os.getppid()),
        **_uptime(process),
        "localTime": process.now(),
        "asserts": {**dict.fromkeys(_ASSERTS, 0), "user": counters.user_asserts},
        "connections": _connections(process),
        "extra_info": _extra_info(),
        "network": {
            "bytesIn": Int64(counters.bytes_in),
            "bytesOut": Int64(counters.bytes_out),
            "physicalBytesIn": Int64(counters.bytes_in),
            "physicalBytesOut": Int64(counters.bytes_out),
            "numRequests": Int64(counters.requests),
        },
        "opcounters": _opcounters(counters),
        "security": _security(process),
        "sharding": {} if config is None else {"configsvrConnectionString": config},
        # The upstream, or the set, coordinates transactions: the router has none of its own.
        "transactions": dict.fromkeys(_TRANSACTIONS, Int64(0)),
        "mem": {"bits": 64, "resident": _resident_mb(), "supported": True},
        "metrics": {
            "commands": _commands(counters),
            "cursor": {"open": dict.fromkeys(("multiTarget", "total"), Int64(len(cursors)))},
            "passedThrough": Int64(counters.passed_through),
        },
        "mergerouter": _mergerouter(process, streams),
    }


def _security(process: ServingProcess) -> dict[str, Any]:
    """Return the section about the router's certificate, if any; logins are not counted."""
    described = {} if process.certificates is None else process.certificates.describe()
    return {**described, "authentication": {"mechanisms": {}}}


def _opcounters(counters: Counters) -> dict[str, Int64]:
    kinds = {kind: counters.runs[name] for kind, name in _KINDS.items()}
    kinds["command"] = counters.requests - sum(kinds.values())
    return {kind: Int64(count) for kind, count in kinds.items()}


def _commands(counters: Counters) -> dict[str, Any]:
    """Return how often each command was run that was run at all, by its official name."""
    totals: dict[str, Any] = {UNKNOWN: Int64(counters.runs[UNKNOWN])}
    for name, total in counters.runs.items():
        if name != UNKNOWN and not name.startswith("_"):
            totals[name] = {"failed": Int64(counters.failures[name]), "total": Int64(total)}
    return totals


def _mergerouter(process: ServingProcess, streams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the router's own section: the state of each merge (docs/design.md#the-merge)."""
    cursors, peers = process.cursors, process.peers
    whose = {} if peers is None else {"worker": peers.number}
    open_streams = cursors.streams
    loads, admission = open_streams.resources.loads.by_target, open_streams.admission
    return {
        "streams": [{**stream, **whose} for stream in streams],
        "bufferedBytes": Int64(sum(stream["bufferedBytes"] for stream in streams)),
        "tasks": len(asyncio.all_tasks()),
        "members": {target: load.to_document() for target, load in loads.items()},
        "memberConnections": {
            format_address(address): {
                "inUse": counts.in_use,
                "available": counts.available,
                "created": Int64(counts.created),
            }
            for address, counts in process.cluster.pool.counts.items()
        },
        "moves": {
            "toShared": Int64(open_streams.moves_to_shared),
            "toOwn": Int64(open_streams.moves_to_own),
        },
        "differentStreams": admission.streams,
        "refused": {name: Int64(count) for name, count in admission.refused.items()},
        "users": [{**share, **whose} for share in admission.users(_MOST_USERS)],
        **({} if peers is None else {"workers": [_worker(process, peers.number)]}),
    }


def _worker(process: ServingProcess, number: int) -> dict[str, Any]:
    return {
        "worker": number,
        "pid": Int64(os.getpid()),
        "connections": process.counters.connections,
        "cursors": len(process.cursors),
        "passedOn": Int64(process.counters.passed_on),
        "cpuMillis": Int64(time.process_time() * 1000),
        "residentMb": _resident_mb(),
    }


def _uptime(process: ServingProcess) -> dict[str, Any]:
    seconds = (process.now() - process.server.started).total_seconds()
    return {
        "uptime": float(int(seconds)),
        "uptimeMillis": Int64(seconds * 1000),
        "uptimeEstimate": Int64(seconds),
    }


def _connections(process: ServingProcess) -> dict[str, Any]:
    counters = process.counters
    return {
        "current": counters.connections,
        "available": process.client_limits.connections - counters.connections,
        "totalCreated": Int64(counters.connections_created),
        "awaitingTopologyChanges": counters.awaiting_hellos,
    }


def _extra_info() -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "note": "fields vary by platform",
        "user_time_us": Int64(usage.ru_utime * 1_000_000),
        "system_time_us": Int64(usage.ru_stime * 1_000_000),
        "maximum_resident_set_kb": Int64(usage.ru_maxrss),
    }


def _resident_mb() -> int:
    return resident_bytes() // (1024 * 1024)
