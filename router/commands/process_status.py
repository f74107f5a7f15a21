"""The status of one process for the admin port: what it, its workers and running jobs report."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from pydantic import ValidationError

from router.access.authorization import require_stream
from router.allocator import resident_bytes
from router.commands.call import Call
from router.commands.command import answers
from router.commands.job_reports import JobReport
from router.commands.reply_bodies import Answer
from router.commands.server_status import described_streams, own_status
from router.commands.serving_process import ServingProcess
from router.config.log_lines import RECENT
from router.config.problems import wanted_value
from router.privileges import WHOLE
from router.request.field_checks import check_known
from shard_client.errors import CommandError, ErrorCode

PROCESS_STATUS: Final = "_mergerouterProcessStatus"

_NONE: Final = {"watermark": None, "cursors": 0, "failing": 0, "bufferedBytes": 0}
"""The figures of a target that no stream reads."""
_MOST_STREAMS = 200
_MOST_CURSORS = 200
_FARTHEST = 5
"""Number of the cursors farthest behind that metrics name."""


async def process_status(process: ServingProcess, *, details: bool, checks: bool) -> dict[str, Any]:
    """Return the status of this process alone (docs/admin.md).

    With ``details``, it includes lists of streams, cursors, jobs and recent failures, for the page;
    with ``checks``, checks of the servers that the settings name.
    """
    cursors = process.cursors
    loads, memory = cursors.streams.resources.loads, cursors.streams.resources.memory
    number = 1 if process.peers is None else process.peers.number
    waiting, targets = 0, defaultdict[str, dict[str, Any]](lambda: {**_NONE, "held": Counter()})
    streams: list[Mapping[str, Any]] = []
    async for stream in described_streams(process):
        waiting += stream["waiting"]
        _add(targets, stream)
        if details and len(streams) < _MOST_STREAMS:
            streams.append({**stream, "worker": number})
    listed = cursors.describe_cursors(
        _MOST_CURSORS if details else _FARTHEST, process.now().timestamp()
    )
    status: dict[str, Any] = {
        "worker": number,
        "now": process.now(),
        "started": process.server.started,
        "quiescing": process.server.topology.quiescing,
        "status": own_status(process),
        "clusterTime": process.clock.time,
        "waitingStreams": waiting,
        "targets": dict(targets),
        "cursors": len(cursors),
        "cursorList": [{**entry, "worker": number} for entry in listed],
        "heldBytes": memory.held,
        "bufferLimitBytes": memory.limit,
        "userBufferLimitBytes": memory.user_limit,
        "delivered": {"events": loads.delivered, "bytes": loads.delivered_bytes},
        "lowWatermarkWaits": loads.low_watermark_waits.to_document(),
        "replyDelays": loads.reply_delays.to_document(),
        "errors": _by_name(process.counters.errors),
        "places": cursors.places,
        "cpuTime": time.process_time(),
        "residentBytes": resident_bytes(),
        "unwrittenLogLines": RECENT.unwritten,
        "loopLag": process.counters.loop_lag.to_document(),
    }
    if checks and process.checks is not None:
        status["checks"] = list(map(asdict, await process.checks.results()))
    if details:
        status["streams"] = streams
        status["failures"] = list(RECENT.failures)
        status["jobs"] = list(map(asdict, process.jobs.current(process.now())))
    return status


def _by_name(errors: Mapping[int, int]) -> Counter[str]:
    """Return the counts by the names of their codes; a code without a name is a number."""
    named: Counter[str] = Counter()
    for code, count in errors.items():
        has_name = code in ErrorCode._value2member_map_
        named[ErrorCode(code).name if has_name else str(code)] += count
    return named


def _add(targets: Mapping[str, dict[str, Any]], stream: Mapping[str, Any]) -> None:
    """Add to each target's figures what a stream has there.

    The watermarks are those of streams for which clients wait: a stream whose clients do not read
    does not ask its shards for more.
    """
    for remote in stream["remotes"]:
        sums = targets[remote["target"]]
        sums["cursors"] += 1
        sums["failing"] += "failingMillis" in remote
        sums["bufferedBytes"] += remote["bufferedBytes"]
        if stream["waitedFor"] and remote["watermark"] is not None:
            sums["watermark"] = min(sums["watermark"] or remote["watermark"], remote["watermark"])
    if (slowest := stream["slowestShard"]) is not None:
        targets[slowest]["held"][stream["slowestReason"]] += 1


@answers(PROCESS_STATUS, help="the status of one worker", while_quiescing=True)
async def _report(call: Call) -> Answer:
    """Report this process's status to the parent of the workers; no client may ask for it."""
    if not call.client.is_worker:
        raise CommandError(ErrorCode.CommandNotFound, f"no such command: '{call.name}'")
    details, checks = bool(call.command.get("details")), bool(call.command.get("checks"))
    return Answer(await process_status(call.process, details=details, checks=checks))


REPORT_JOB: Final = "mergerouterReportJob"
_OF_A_JOB = frozenset({"job", "batch", "through", "rate", "waits", "error", "ended"})


@answers(REPORT_JOB, help="show a job on the router's status page")
async def report_job(call: Call) -> Answer:
    """Keep what a job says of itself, from a user who may open the job's stream.

    Raises CommandError: 13, the user may not; 2 or 40415, a field is wrong or unknown.
    """
    command = call.command
    check_known(command, call.name, _OF_A_JOB)
    target = command[call.name]
    collection = target if isinstance(target, str) else None
    if call.user is not None:
        require_stream(call.user, call.database, collection, command)
    said = {name: command[name] for name in _OF_A_JOB & command.keys()}
    host, namespace = call.client.host, f"{call.database}.{collection or WHOLE}"
    owner = host if call.user_name is None else f"{call.user_name}, {host}"
    try:
        report = JobReport(owner=owner, namespace=namespace, arrived=call.process.now(), **said)
    except ValidationError as error:
        problem = error.errors()[0]
        absent = problem["type"] == "missing"
        wanted = "given" if absent else wanted_value(problem) or "of another type"
        message = f"{call.name}: {problem['loc'][0]} must be {wanted}"
        raise CommandError(ErrorCode.BadValue, message) from None
    call.process.jobs.add(report)
    return Answer({})
