"""The status of one process for the admin port, and the command by which workers report it."""

import os
import resource
from collections import Counter
from typing import Any, Final

from bson.timestamp import Timestamp

from router.commands.answer import Answer
from router.commands.call import Call, Command
from router.commands.node import Node
from router.commands.server_status import own_status
from router.config.log_lines import RECENT
from router.streams.description import StreamDescription
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

COMMAND: Final = "_mergerouterProcessStatus"

_MOST_STREAMS = 200
_MOST_CURSORS = 200
_MOST_FAILURES = 50
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


async def process_status(node: Node, *, details: bool, checks: bool) -> dict[str, Any]:
    """Return the status of this process alone (docs/admin.md).

    Other tasks run between two streams, so that many streams do not delay clients.

    Args:
        node: the process's state.
        details: include lists of streams, cursors and recent failures, as the status page needs.
        checks: include checks of the cluster's replica sets.
    """
    cursors = node.cursors
    tally = _Tally()
    streams: list[StreamDescription] = []
    async for stream in cursors.describe_gradually():
        tally.add(stream)
        if details and len(streams) < _MOST_STREAMS:
            streams.append(stream)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    status: dict[str, Any] = {
        "worker": 1 if node.peers is None else node.peers.number,
        "now": node.now(),
        "started": node.started,
        "quiescing": node.topology.quiescing,
        "status": own_status(node, streams=False),
        "clusterTime": node.clock.time,
        "targets": tally.to_document(),
        "waitingStreams": tally.waiting,
        "cursors": len(cursors),
        "heldBytes": cursors.memory.held,
        "bufferLimitBytes": cursors.memory.limit,
        "userBufferLimitBytes": cursors.memory.user_limit,
        "delivered": {
            "events": cursors.loads.delivered,
            "bytes": cursors.loads.delivered_bytes,
        },
        "gateWaits": cursors.loads.gate_waits.to_document(),
        "replyDelays": cursors.loads.reply_delays.to_document(),
        "errors": {str(code): count for code, count in node.counters.errors.items()},
        "places": {
            "cursor": cursors.earliest_place,
            "departed": cursors.earliest_departed_place,
        },
        "cpuSeconds": usage.ru_utime + usage.ru_stime,
        "residentBytes": _resident_bytes(),
        "unwrittenLogLines": RECENT.unwritten,
        "loopLag": None if node.lag is None else node.lag.to_document(),
    }
    if checks and node.checks is not None:
        results = await node.checks.results()
        status["checks"] = {target: check.to_document() for target, check in results.items()}
    if details:
        status["streams"] = [stream.to_document() for stream in streams]
        status["cursorList"] = [
            each.to_document() for each in cursors.describe_cursors(_MOST_CURSORS)
        ]
        status["failures"] = RECENT.failures(_MOST_FAILURES)
    return status


class _Tally:
    """Sums over streams by target, for the metrics."""

    def __init__(self) -> None:
        self.waiting = 0
        self._watermarks: dict[str, Timestamp] = {}
        self._cursors: Counter[str] = Counter()
        self._failing: Counter[str] = Counter()
        self._buffered: Counter[str] = Counter()
        self._held: dict[str, Counter[str]] = {}

    def add(self, stream: StreamDescription) -> None:
        """Add one stream."""
        self.waiting += stream.waiting
        if stream.gate_holder is not None and stream.gate_reason is not None:
            self._held.setdefault(stream.gate_holder, Counter())[stream.gate_reason] += 1
        for remote in stream.remotes:
            if remote.promise is not None:
                lowest = self._watermarks.setdefault(remote.target, remote.promise)
                self._watermarks[remote.target] = min(lowest, remote.promise)
            self._cursors[remote.target] += 1
            self._failing[remote.target] += remote.failing_for is not None
            self._buffered[remote.target] += remote.buffered_bytes

    def to_document(self) -> dict[str, Any]:
        """Return the sums by target."""
        return {
            target: {
                "watermark": self._watermarks.get(target),
                "cursors": cursors,
                "failing": self._failing[target],
                "bufferedBytes": self._buffered[target],
                "held": dict(self._held.get(target, {})),
            }
            for target, cursors in self._cursors.items()
        }


def _resident_bytes() -> int:
    """Return the memory of this process that is in RAM now."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * _PAGE_SIZE
    except OSError:  # not Linux: the peak is the next best figure
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _report(call: Call) -> Answer:
    """Report this process's status to the parent of the workers; no client may ask for it."""
    if not call.client.is_worker:
        raise CommandError(ErrorCode.CommandNotFound, f"no such command: '{call.name}'")
    details, checks = bool(call.command.get("details")), bool(call.command.get("checks"))
    return Answer(await process_status(call.node, details=details, checks=checks))


COMMANDS = (Command((COMMAND,), _report, "the status of one worker", while_quiescing=True),)
