"""The router's metrics in the formats of Prometheus and OpenMetrics (docs/admin.md)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from router.admin.router_status import RouterStatus
from router.stream.remotes.remote import REASONS

_PREFIX: Final = "mergerouter_"


class Row(NamedTuple):
    """One metric: its kind, its name without the prefix, where its values are, and its help.

    ``path`` leads to the values, from the document of ``_figures``; that of a counter or histogram
    from the status of each worker: a sum would fall, and rise again, with a worker that restarts.
    A label in it, in braces, stands for all names at its position, which are its values.
    """

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] | type[HistogramMetricFamily]
    name: str
    path: str
    text: str

    @property
    def full_path(self) -> str:
        """The path from the document of ``_figures``."""
        return self.path if self.kind is _GAUGE else _EACH_WORKER + self.path

    @property
    def labels(self) -> list[str]:
        """The labels in the full path."""
        return _LABEL.findall(self.full_path)


_LABEL: Final = re.compile(r"{(\w+)}")
_EACH_WORKER: Final = "by_worker.{worker}."
_OURS: Final = "status.mergerouter."
_GAUGE, _COUNTER, _HISTOGRAM = GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily

ROWS: Final = (
    Row(_GAUGE, "workers_expected", "expected", "Processes that should serve clients."),
    Row(_GAUGE, "workers", "running", "Processes that serve clients."),
    Row(_GAUGE, "start_time_seconds", "started", "Time of the start since 1970."),
    Row(_GAUGE, "certificate_expiry_seconds", "status.security.SSLServerCertificateExpirationDate",
        "Time since 1970 at which the certificate that clients see expires."),
    Row(_COUNTER, "cpu_seconds", "cpuTime", "CPU time used by each process."),
    Row(_GAUGE, "resident_memory_bytes", _EACH_WORKER + "residentBytes",
        "RAM used by each process."),
    Row(_HISTOGRAM, "event_loop_lag_seconds", "loopLag",
        "How late timers of each process ran, measured four times a second."),
    Row(_COUNTER, "unwritten_log_lines", "unwrittenLogLines",
        "Writes of log lines that failed; getLog still returns the latest of these lines."),
    Row(_GAUGE, "client_connections", "status.connections.current", "Open connections of drivers."),
    Row(_COUNTER, "client_connections_created", "status.connections.totalCreated",
        "Connections that drivers have made."),
    Row(_COUNTER, "client_received_bytes", "status.network.bytesIn",
        "Bytes received from drivers."),
    Row(_COUNTER, "client_sent_bytes", "status.network.bytesOut", "Bytes sent to drivers."),
    Row(_COUNTER, "client_requests", "status.opcounters.{kind}", "Requests of drivers by kind."),
    Row(_COUNTER, "passed_through_requests", "status.metrics.passedThrough",
        "Requests passed to the upstream mongos."),
    Row(_COUNTER, "errors", "errors.{code}", "Errors sent to drivers by code."),
    Row(_COUNTER, "refused", _OURS + "refused.{parameter}",
        "Cursors and streams refused, by the parameter that limits them."),
    Row(_GAUGE, "cursors", "cursors", "Open cursors of clients."),
    Row(_GAUGE, "streams", _OURS + "differentStreams",
        "Different open streams; clients with identical requests share one."),
    Row(_GAUGE, "streams_waiting", "waitingStreams",
        "Streams with events that the low watermark holds back."),
    Row(_GAUGE, "buffered_bytes", "heldBytes", "Memory of the events that streams hold."),
    Row(_GAUGE, "buffer_limit_bytes", "bufferLimitBytes",
        "Memory beyond which only empty buffers are filled (totalBufferBytes)."),
    Row(_GAUGE, "largest_user_buffered_bytes", "largestUser",
        "Memory of the events that one user's streams hold: that of the user with the most."),
    Row(_GAUGE, "user_buffer_limit_bytes", "userBufferLimitBytes",
        "Memory of one user's streams beyond which only their empty buffers are filled "
        "(userBufferBytes)."),
    Row(_HISTOGRAM, "low_watermark_wait_seconds", "lowWatermarkWaits",
        "Time for which events waited for the low watermark, once for each batch or more."),
    Row(_HISTOGRAM, "reply_delay_seconds", "replyDelays",
        "Time from the release of events until the reply to a waiting client is begun."),
    Row(_COUNTER, "delivered_events", "delivered.events", "Change events given to clients."),
    Row(_COUNTER, "delivered_event_bytes", "delivered.bytes", "Bytes of these change events."),
    Row(_COUNTER, "openings", _OURS + "members.{shard}.openings",
        "Cursors opened on the replica set."),
    Row(_COUNTER, "get_mores", _OURS + "members.{shard}.getMores",
        "getMore commands sent to the replica set."),
    Row(_COUNTER, "noop_commands", _OURS + "members.{shard}.noopCommands",
        "Commands that made an idle replica set's oplog advance."),
    Row(_COUNTER, "noop_writes", _OURS + "members.{shard}.noopWrites",
        "Oplog entries written by no-op writes."),
    Row(_COUNTER, "noop_write_bytes", _OURS + "members.{shard}.noopWriteBytes",
        "Bytes that these oplog entries take."),
    Row(_COUNTER, "reopenings", _OURS + "members.{shard}.reopenings",
        "Failures after which a cursor was opened again."),
    Row(_COUNTER, "received_events", _OURS + "members.{shard}.events",
        "Change events received from the replica set."),
    Row(_COUNTER, "received_event_bytes", _OURS + "members.{shard}.eventBytes",
        "Bytes of these change events."),
    Row(_GAUGE, "member_connections", "pooled.{member}.{state}",
        "Connections to each member, without the monitor's."),
    Row(_COUNTER, "member_connections_created", _OURS + "memberConnections.{member}.created",
        "Connections made to each member."),
    Row(_GAUGE, "watermark_timestamp_seconds", "targets.{shard}.watermark",
        "Cluster time up to which the replica set's events are known, in the last of the streams "
        "for which clients wait."),
    Row(_GAUGE, "watermark_lag_seconds", "lags.{shard}",
        "Time since that cluster time, by the router's clock, in whole seconds."),
    Row(_GAUGE, "client_lag_seconds", "clients.{client}.{namespace}",
        "Time for which a client leaves events unread that it could have: of the five clients of "
        "each process that are farthest behind."),
    Row(_GAUGE, "streams_held", "held.{shard}.{reason}",
        "Streams of which the replica set is the slowest shard, by reason."),
    Row(_GAUGE, "member_cursors", "targets.{shard}.cursors", "Open cursors on the replica set."),
    Row(_GAUGE, "failing_cursors", "targets.{shard}.failing",
        "Cursors on the replica set that are being reopened."),
    Row(_GAUGE, "member_buffered_bytes", "targets.{shard}.bufferedBytes",
        "Memory of events not read by clients yet."),
    Row(_GAUGE, "replica_set_up", "checks.{shard}.usable",
        "Whether the primary of the replica set answers, and lets the router read: 1 or 0."),
    Row(_GAUGE, "oplog_oldest_timestamp_seconds", "checks.{shard}.oldest",
        "Cluster time of the oldest entry in the primary's oplog."),
    Row(_GAUGE, "history_left_seconds", "historyLeft.{place}.{shard}",
        "Seconds of oplog between its oldest entry and the farthest behind client: those with a "
        "cursor (place=cursor), or those that left one within a day (place=departed). +Inf while "
        "the oplog is complete since the replica set was initiated."),
)  # fmt: skip


def exposition(status: RouterStatus, accept: str) -> tuple[bytes, str]:
    """Return the metrics of ``status`` and their content type; gauges are summed over processes.

    The request's Accept header selects the format: text if it is malformed.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # it names a version that is no number
        encode, content_type = choose_encoder("")
    return encode(SimpleNamespace(collect=partial(_metrics, _figures(status)))), content_type


def _metrics(figures: Mapping[str, Any]) -> Iterable[Metric]:
    """Yield all metrics; those whose figures are unknown have no samples."""
    build = {"version": version("mergerouter")}
    if "status" in figures:
        build["mongodb_version"] = str(figures["status"]["version"])
    yield InfoMetricFamily(_PREFIX + "build", "The router's version.", build)
    for row in ROWS:
        metric = row.kind(_PREFIX + row.name, row.text, labels=row.labels)
        for labels, value in _values(figures, row.full_path.split(".")):
            if isinstance(metric, HistogramMetricFamily):
                counts = value["counts"]
                buckets = list(zip(counts, accumulate(counts.values()), strict=True))
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
        "by_worker": {str(process["worker"]): process for process in status.processes},
        "lags": status.lags,
        "checks": status.checks,
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
    figures["held"] = {
        target: dict.fromkeys(REASONS, 0) | sums["held"]
        for target, sums in total["targets"].items()
    }
    return figures


def _values(status: Any, path: Sequence[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield the values at the path's end, each with the names that its labels stand for."""
    if status is None:
        return
    if not path:
        yield [], status
        return
    first, *rest = path
    assert isinstance(status, Mapping)
    is_label = first.startswith("{")
    for name in status if is_label else [first]:
        for labels, value in _values(status.get(name), rest):
            yield ([name, *labels] if is_label else labels), value


def _number(value: Any) -> float:
    if isinstance(value, Timestamp):
        return float(value.time)
    return value.timestamp() if isinstance(value, datetime) else float(value)
