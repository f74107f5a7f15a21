"""The router's metrics in the formats of Prometheus and OpenMetrics (docs/admin.md)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from itertools import accumulate
from typing import Any, Final, NamedTuple, get_args

from bson.timestamp import Timestamp
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from router.admin.sources import RouterStatus
from router.stream.admission import Limiting
from router.stream.read_scheduler import REASONS

_PREFIX: Final = "mergerouter_"


class Row(NamedTuple):
    """One metric: its kind, its name without the prefix, its help and where its values are.

    ``path`` leads to the values, from the document of ``_figures``. Each ``*`` in it stands for all
    names at its position, which are the values of ``labels``.
    """

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] | type[HistogramMetricFamily]
    name: str
    text: str
    path: str
    labels: Sequence[str] = ()


_OURS: Final = "status.mergerouter."
_GAUGE, _COUNTER, _HISTOGRAM = GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily

ROWS: Final = (
    Row(_GAUGE, "workers_expected", "Processes that should serve clients.", "expected"),
    Row(_GAUGE, "workers", "Processes that serve clients.", "running"),
    Row(_GAUGE, "start_time_seconds", "Time of the start since 1970.", "started"),
    Row(
        _GAUGE,
        "certificate_expiry_seconds",
        "Time since 1970 at which the certificate that clients see expires.",
        "status.security.SSLServerCertificateExpirationDate",
    ),
    Row(_COUNTER, "cpu_seconds", "CPU time used by each process.", "by_worker.*.cpuTime",
        ["worker"]),
    Row(_GAUGE, "resident_memory_bytes", "RAM used by each process.",
        "by_worker.*.residentBytes", ["worker"]),
    Row(
        _HISTOGRAM,
        "event_loop_lag_seconds",
        "How late timers of each process ran, measured four times a second.",
        "by_worker.*.loopLag",
        ["worker"],
    ),
    Row(
        _COUNTER,
        "unwritten_log_lines",
        "Writes of log lines that failed; getLog still returns the latest of these lines.",
        "unwrittenLogLines",
    ),
    Row(_GAUGE, "client_connections", "Open connections of drivers.",
        "status.connections.current"),
    Row(_COUNTER, "client_connections_created", "Connections that drivers have made.",
        "status.connections.totalCreated"),
    Row(_COUNTER, "client_received_bytes", "Bytes received from drivers.",
        "status.network.bytesIn"),
    Row(_COUNTER, "client_sent_bytes", "Bytes sent to drivers.", "status.network.bytesOut"),
    Row(_COUNTER, "client_requests", "Requests of drivers by kind.", "status.opcounters.*",
        ["kind"]),
    Row(_COUNTER, "passed_through_requests", "Requests passed to the upstream mongos.",
        "status.metrics.passedThrough"),
    Row(_COUNTER, "errors", "Errors sent to drivers by code.", "errors.*", ["code"]),
    Row(
        _COUNTER,
        "refused",
        "Cursors and streams refused, by the parameter that limits them.",
        "refused.*",
        ["parameter"],
    ),
    Row(_GAUGE, "cursors", "Open cursors of clients.", "cursors"),
    Row(
        _GAUGE,
        "streams",
        "Different open streams; clients with identical requests share one.",
        _OURS + "differentStreams",
    ),
    Row(
        _GAUGE,
        "streams_waiting",
        "Streams with events that the low watermark holds back.",
        "waitingStreams",
    ),
    Row(_GAUGE, "buffered_bytes", "Memory of the events that streams hold.", "heldBytes"),
    Row(
        _GAUGE,
        "buffer_limit_bytes",
        "Memory beyond which only empty buffers are filled (totalBufferBytes).",
        "bufferLimitBytes",
    ),
    Row(
        _GAUGE,
        "largest_user_buffered_bytes",
        "Memory of the events that one user's streams hold: that of the user with the most.",
        "largestUser",
    ),
    Row(
        _GAUGE,
        "user_buffer_limit_bytes",
        "Memory of one user's streams beyond which only their empty buffers are filled "
        "(userBufferBytes).",
        "userBufferLimitBytes",
    ),
    Row(
        _HISTOGRAM,
        "low_watermark_wait_seconds",
        "Time for which events waited for the low watermark, once for each batch or more.",
        "lowWatermarkWaits",
    ),
    Row(
        _HISTOGRAM,
        "reply_delay_seconds",
        "Time from the release of events until the reply to a waiting client is begun.",
        "replyDelays",
    ),
    Row(_COUNTER, "delivered_events", "Change events given to clients.", "delivered.events"),
    Row(_COUNTER, "delivered_event_bytes", "Bytes of these change events.", "delivered.bytes"),
    *(
        Row(_COUNTER, name, text, f"{_OURS}members.*.{field}", ["shard"])
        for name, field, text in (
            ("openings", "openings", "Cursors opened on the replica set."),
            ("get_mores", "getMores", "getMore commands sent to the replica set."),
            ("noop_commands", "noopCommands",
             "Commands that made an idle replica set's oplog advance."),
            ("noop_writes", "noopWrites", "Oplog entries written by no-op writes."),
            ("noop_write_bytes", "noopWriteBytes", "Bytes that these oplog entries take."),
            ("reopenings", "reopenings", "Failures after which a cursor was opened again."),
            ("received_events", "events", "Change events received from the replica set."),
            ("received_event_bytes", "eventBytes", "Bytes of these change events."),
        )
    ),
    Row(
        _GAUGE,
        "member_connections",
        "Connections to each member, without the monitor's.",
        "pooled.*.*",
        ["member", "state"],
    ),
    Row(_COUNTER, "member_connections_created", "Connections made to each member.",
        f"{_OURS}memberConnections.*.created", ["member"]),
    Row(
        _GAUGE,
        "watermark_timestamp_seconds",
        "Cluster time up to which the replica set's events are known, in the last of the streams "
        "for which clients wait.",
        "targets.*.watermark",
        ["shard"],
    ),
    Row(
        _GAUGE,
        "watermark_lag_seconds",
        "Time since that cluster time, by the router's clock, in whole seconds.",
        "lags.*",
        ["shard"],
    ),
    Row(
        _GAUGE,
        "client_lag_seconds",
        "Time for which a client leaves events unread that it could have: of the clients of each "
        "process that are farthest behind.",
        "clients.*.*",
        ["client", "namespace"],
    ),
    Row(
        _GAUGE,
        "streams_held",
        "Streams of which the replica set is the slowest shard, by reason.",
        "held.*.*",
        ["shard", "reason"],
    ),
    Row(_GAUGE, "member_cursors", "Open cursors on the replica set.", "targets.*.cursors",
        ["shard"]),
    Row(_GAUGE, "failing_cursors", "Cursors on the replica set that are being reopened.",
        "targets.*.failing", ["shard"]),
    Row(_GAUGE, "member_buffered_bytes", "Memory of events not read by clients yet.",
        "targets.*.bufferedBytes", ["shard"]),
    Row(_GAUGE, "replica_set_up",
        "Whether the primary of the replica set answers, and lets the router read: 1 or 0.",
        "checks.*.usable", ["shard"]),
    Row(
        _GAUGE,
        "oplog_oldest_timestamp_seconds",
        "Cluster time of the oldest entry in the primary's oplog.",
        "shards.*.oldest",
        ["shard"],
    ),
    Row(
        _GAUGE,
        "history_left_seconds",
        "Seconds of oplog between its oldest entry and the farthest behind client: those with "
        "a cursor (place=cursor), or those that left one within a day (place=departed). +Inf "
        "while the oplog is complete since the replica set was initiated.",
        "historyLeft.*.*",
        ["place", "shard"],
    ),
)  # fmt: skip


def exposition(status: RouterStatus, accept: str) -> tuple[bytes, str]:
    """Return the metrics of ``status`` and their content type.

    Args:
        status: the status of all processes; counts are summed over them.
        accept: the request's Accept header, which selects the format; text if it is malformed.
    """
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # it names a version that is no number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class StatusCollector(Collector):
    """Yields the metrics of one status."""

    def __init__(self, status: RouterStatus) -> None:
        self._figures = _figures(status)

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; those whose figures are unknown have no samples."""
        build = {"version": version("mergerouter")}
        if "status" in self._figures:
            build["mongodb_version"] = str(self._figures["status"]["version"])
        yield InfoMetricFamily(_PREFIX + "build", "The router's version.", build)
        for row in ROWS:
            metric = row.kind(_PREFIX + row.name, row.text, labels=row.labels)
            for labels, value in _values(self._figures, row.path.split(".")):
                if isinstance(metric, HistogramMetricFamily):
                    counts = value["counts"]
                    cumulative = accumulate(counts.values())
                    buckets = list(zip(counts, cumulative, strict=True))
                    metric.add_metric(labels, buckets, value["total"])
                else:
                    metric.add_metric(labels, _number(value))
            yield metric


def _figures(status: RouterStatus) -> dict[str, Any]:
    """Return what the rows refer to: the processes' total, and what follows from it."""
    total = status.total
    figures: dict[str, Any] = {
        **total,
        "expected": status.expected,
        "running": len(status.processes),
        "by_worker": {str(each["worker"]): each for each in status.processes},
        "lags": status.lags,
        "checks": status.checks,
        "shards": {
            target: each for target, each in status.checks.items() if each["oldest"] is not None
        },
        "historyLeft": {place: status.history_left(place) for place in ("cursor", "departed")},
    }
    if not total:
        return figures
    ours = total["status"]["mergerouter"]
    users: Counter[str] = Counter()
    for user in ours["users"]:
        users[user["user"]] += user["heldBytes"]
    figures["largestUser"] = max(users.values(), default=0)
    figures["pooled"] = {
        member: {"in_use": counts["inUse"], "idle": counts["available"]}
        for member, counts in ours["memberConnections"].items()
    }
    clients: dict[str, dict[str, float]] = {}
    for cursor in total["cursorList"]:
        # Without its port: a client that connects again is the same one.
        address, _space, application = cursor["client"].partition(" ")
        host = address.rpartition(":")[0] or address
        lags = clients.setdefault(f"{application} at {host}" if application else host, {})
        lags[cursor["namespace"]] = max(lags.get(cursor["namespace"], 0.0), cursor["behindSeconds"])
    figures["clients"] = clients
    # A series that begins with its first count would hide it from increase().
    figures["refused"] = dict.fromkeys(get_args(Limiting), 0) | ours["refused"]
    figures["held"] = {
        target: dict.fromkeys(REASONS, 0) | sums["held"]
        for target, sums in total["targets"].items()
    }
    return figures


def _values(found: Any, path: Sequence[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield the values at the path's end, each with the names that its stars stand for."""
    if found is None:
        return
    if not path:
        yield [], found
        return
    first, *rest = path
    assert isinstance(found, Mapping)
    for name in found if first == "*" else [first]:
        for labels, value in _values(found.get(name), rest):
            yield ([name, *labels] if first == "*" else labels), value


def _number(value: Any) -> float:
    if isinstance(value, Timestamp):
        return float(value.time)
    return value.timestamp() if isinstance(value, datetime) else float(value)
