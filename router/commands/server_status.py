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
from router.commands.call import UNKNOWN, Call, answers
from router.commands.node import Counters, Node
from router.commands.other_workers import ask_other_workers
from router.commands.reply_bodies import Answer
from router.status.sums import sum_statuses
from shard_client.wire.connection import format_address

_MOST_USERS = 100
_KINDS = {
    "insert": "insert",
    "query": "find",
    "update": "update",
    "delete": "delete",
    "getmore": "getMore",
}
_TRANSACTIONS = (
    "currentOpen", "currentActive", "currentInactive", "totalStarted", "totalCommitted",
    "totalAborted", "totalContactedParticipants", "totalParticipantsAtCommit",
    "totalRequestsTargeted",
)  # fmt: skip
_ADDED = frozenset({"ok", "$clusterTime", "operationTime"})


@answers("serverStatus", help="counters of this process", action="serverStatus")
async def server_status(call: Call) -> Answer:
    """Report connections, traffic, cursors and memory, summed over all workers."""
    reply = own_status(call.node, [stream async for stream in described_streams(call.node)])
    for section, wanted in call.command.items():
        if section in reply and wanted in (0, False):
            del reply[section]
    others = await ask_other_workers(call)
    reply = sum_statuses([reply, *map(_without_times, others)])
    reply.get("mergerouter", {}).get("workers", []).sort(key=itemgetter("worker"))
    return Answer(reply)


async def described_streams(node: Node) -> AsyncIterator[dict[str, Any]]:
    """Yield the descriptions of this process's streams; other tasks run between two of them."""
    for stream in node.cursors.describe():
        yield stream
        await asyncio.sleep(0)


def own_status(node: Node, streams: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the status of this process alone, with the descriptions of its ``streams``."""
    return {
        "host": f"{node.host}:{node.port}",
        "version": node.identity.version,
        "process": "mongos",
        "pid": Int64(os.getpid() if node.peers is None else os.getppid()),
        **_uptime(node),
        "localTime": node.now(),
        "asserts": {
            "regular": 0,
            "warning": 0,
            "msg": 0,
            "user": node.counters.user_asserts,
            "tripwire": 0,
            "rollovers": 0,
        },
        "connections": _connections(node),
        "extra_info": _extra_info(),
        "network": {
            "bytesIn": Int64(node.counters.bytes_in),
            "bytesOut": Int64(node.counters.bytes_out),
            "physicalBytesIn": Int64(node.counters.bytes_in),
            "physicalBytesOut": Int64(node.counters.bytes_out),
            "numRequests": Int64(node.counters.requests),
        },
        "opcounters": _opcounters(node.counters),
        "security": _security(node),
        "sharding": {"configsvrConnectionString": node.options["sharding"]["configDB"]}
        if "sharding" in node.options
        else {},
        # The upstream, or the set, coordinates transactions: the router has none of its own.
        "transactions": dict.fromkeys(_TRANSACTIONS, Int64(0)),
        "mem": {"bits": 64, "resident": _resident_mb(), "supported": True},
        "metrics": {
            "commands": _commands(node.counters),
            "cursor": {
                "open": {"multiTarget": Int64(len(node.cursors)), "total": Int64(len(node.cursors))}
            },
            "passedThrough": Int64(node.counters.passed_through),
        },
        "mergerouter": _mergerouter(node, streams),
    }


def _security(node: Node) -> dict[str, Any]:
    """Return the section about the router's certificate, if any; logins are not counted."""
    described = {} if node.certificates is None else node.certificates.describe()
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


def _without_times(status: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name not in _ADDED}


def _mergerouter(node: Node, streams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the router's own section: the state of each merge (docs/design.md#the-merge)."""
    whose = {} if node.peers is None else {"worker": node.peers.number}
    to_shared, to_own = node.cursors.moves
    loads = node.cursors.loads.by_target
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
            for address, counts in node.cursors.connections.items()
        },
        "moves": {"toShared": Int64(to_shared), "toOwn": Int64(to_own)},
        "differentStreams": node.cursors.admission.streams,
        "refused": {name: Int64(count) for name, count in node.cursors.admission.refused.items()},
        "users": [{**share, **whose} for share in node.cursors.admission.users(_MOST_USERS)],
        **({} if node.peers is None else {"workers": [_worker(node, node.peers.number)]}),
    }


def _worker(node: Node, number: int) -> dict[str, Any]:
    return {
        "worker": number,
        "pid": Int64(os.getpid()),
        "connections": node.counters.connections,
        "cursors": len(node.cursors),
        "passedOn": Int64(node.counters.passed_on),
        "cpuMillis": Int64(time.process_time() * 1000),
        "residentMb": _resident_mb(),
    }


def _uptime(node: Node) -> dict[str, Any]:
    seconds = (node.now() - node.started).total_seconds()
    return {
        "uptime": float(int(seconds)),
        "uptimeMillis": Int64(seconds * 1000),
        "uptimeEstimate": Int64(seconds),
    }


def _connections(node: Node) -> dict[str, Any]:
    counters = node.counters
    return {
        "current": counters.connections,
        "available": node.client_limits.connections - counters.connections,
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
