"""The router's metrics in the formats of Prometheus and OpenMetrics (docs/admin.md)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final, get_args

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

from router.admin.figures import earliest_place, error_name, seconds_left
from router.admin.metric_families import PREFIX, buckets, counter, gauge, labelled
from router.admin.sources import RouterStatus
from router.loop_lag import BOUNDS as LAG_BOUNDS
from router.stream.admission import Limiting
from router.stream.noop_writer import TIME_BOUNDS

_CONFIG: Final = "config"
REASONS: Final = ("idle", "behind", "paused", "reconnecting", "opening", "ended")
"""Why a slowest shard's watermark is not greater (``ScheduledRemote.slowest_reason``)."""

_TARGET_COUNTERS: Final = (
    ("openings", "openings", "Cursors opened on the replica set."),
    ("get_mores", "getMores", "getMore commands sent to the replica set."),
    (
        "noop_commands",
        "noopCommands",
        "Commands that made an idle replica set's oplog advance.",
    ),
    ("noop_writes", "noopWrites", "Oplog entries written by no-op writes."),
    ("noop_write_bytes", "noopWriteBytes", "Bytes that these oplog entries take."),
    ("reopenings", "reopenings", "Failures after which a cursor was opened again."),
    ("received_events", "events", "Change events received from the replica set."),
    ("received_event_bytes", "eventBytes", "Bytes of these change events."),
)


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
        self._processes = status.processes
        self._expected = status.expected
        self._checks = status.checks

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        yield from self._process_metrics()
        if self._processes:
            yield from self._client_metrics()
            yield from self._stream_metrics()
            yield from self._member_metrics()
        yield from self._history_metrics()

    def _process_metrics(self) -> Iterator[Metric]:
        build = {"version": version("mergerouter")}
        if self._processes:
            build["mongodb_version"] = str(self._processes[0]["status"]["version"])
        yield InfoMetricFamily(PREFIX + "build", "The router's version.", build)
        yield gauge("workers_expected", "Processes that should serve clients.", self._expected)
        yield gauge("workers", "Processes that serve clients.", len(self._processes))
        starts = [each["started"].timestamp() for each in self._processes]
        yield gauge("start_time_seconds", "Time of the start since 1970.", min(starts, default=0))
        ends = [
            each["status"]["security"]["SSLServerCertificateExpirationDate"].timestamp()
            for each in self._processes
            if "security" in each["status"]
        ]
        if ends:
            yield gauge(
                "certificate_expiry_seconds",
                "Time since 1970 at which the certificate that clients see expires.",
                min(ends),
            )
        lag = HistogramMetricFamily(
            PREFIX + "event_loop_lag_seconds",
            "How late timers of each process ran, measured four times a second.",
            labels=["worker"],
        )
        for each in self._processes:
            if (measured := each["loopLag"]) is not None:
                counts = buckets(LAG_BOUNDS, measured["counts"])
                lag.add_metric([str(each["worker"])], counts, measured["total"])
        cpu = {str(each["worker"]): each["cpuSeconds"] for each in self._processes}
        text = "CPU time used by each process."
        yield labelled(CounterMetricFamily, "cpu_seconds", text, "worker", cpu)
        memory = {str(each["worker"]): each["residentBytes"] for each in self._processes}
        text = "RAM used by each process."
        yield labelled(GaugeMetricFamily, "resident_memory_bytes", text, "worker", memory)
        yield lag
        yield counter(
            "unwritten_log_lines",
            "Writes of log lines that failed; getLog still returns the latest of these lines.",
            sum(each["unwrittenLogLines"] for each in self._processes),
        )

    def _client_metrics(self) -> Iterator[Metric]:
        def total(of: Callable[[Mapping[str, Any]], int]) -> int:
            return sum(of(each["status"]) for each in self._processes)

        yield gauge(
            "client_connections",
            "Open connections of drivers.",
            total(lambda each: each["connections"]["current"]),
        )
        yield counter(
            "client_connections_created",
            "Connections that drivers have made.",
            total(lambda each: each["connections"]["totalCreated"]),
        )
        yield counter(
            "client_received_bytes",
            "Bytes received from drivers.",
            total(lambda each: each["network"]["bytesIn"]),
        )
        yield counter(
            "client_sent_bytes",
            "Bytes sent to drivers.",
            total(lambda each: each["network"]["bytesOut"]),
        )
        kinds = self._sum(lambda each: each["status"]["opcounters"])
        text = "Requests of drivers by kind."
        yield labelled(CounterMetricFamily, "client_requests", text, "kind", kinds)
        yield counter(
            "passed_through_requests",
            "Requests passed to the upstream mongos.",
            total(lambda each: each["metrics"]["passedThrough"]),
        )
        named: Counter[str] = Counter()
        for code, count in self._sum(lambda each: each["errors"]).items():
            named[error_name(int(code))] += count
        yield labelled(
            CounterMetricFamily, "errors", "Errors sent to drivers by code.", "code", named
        )
        # A series that begins with its first refusal would hide it from increase().
        refused = dict.fromkeys(get_args(Limiting), 0)
        refused |= self._sum(lambda each: each["status"]["mergerouter"]["refused"])
        text = "Cursors and streams refused, by the parameter that limits them."
        yield labelled(CounterMetricFamily, "refused", text, "parameter", refused)

    def _stream_metrics(self) -> Iterator[Metric]:
        processes = self._processes
        yield gauge(
            "cursors", "Open cursors of clients.", sum(each["cursors"] for each in processes)
        )
        yield gauge(
            "streams",
            "Different open streams; clients with identical requests share one.",
            sum(each["status"]["mergerouter"]["differentStreams"] for each in processes),
        )
        yield gauge(
            "streams_waiting",
            "Streams with events that the low watermark holds back.",
            sum(each["waitingStreams"] for each in processes),
        )
        yield gauge(
            "buffered_bytes",
            "Memory of the events that streams hold.",
            sum(each["heldBytes"] for each in processes),
        )
        yield gauge(
            "buffer_limit_bytes",
            "Memory beyond which only empty buffers are filled (totalBufferBytes).",
            sum(each["bufferLimitBytes"] for each in processes),
        )
        by_user = Counter[str]()
        for each in processes:
            for user in each["status"]["mergerouter"]["users"]:
                by_user[user["user"]] += user["heldBytes"]
        yield gauge(
            "largest_user_buffered_bytes",
            "Memory of the events that one user's streams hold: that of the user with the most.",
            max(by_user.values(), default=0),
        )
        yield gauge(
            "user_buffer_limit_bytes",
            "Memory of one user's streams beyond which only their empty buffers are filled "
            "(userBufferBytes).",
            sum(each["userBufferLimitBytes"] for each in processes),
        )
        yield self._delays(
            "low_watermark_wait_seconds",
            "Time for which events waited for the low watermark, once for each batch or more.",
            "lowWatermarkWaits",
        )
        yield self._delays(
            "reply_delay_seconds",
            "Time from the release of events until the reply to a waiting client is begun.",
            "replyDelays",
        )
        yield counter(
            "delivered_events",
            "Change events given to clients.",
            sum(each["delivered"]["events"] for each in processes),
        )
        yield counter(
            "delivered_event_bytes",
            "Bytes of these change events.",
            sum(each["delivered"]["bytes"] for each in processes),
        )

    def _delays(self, name: str, text: str, field: str) -> HistogramMetricFamily:
        """Return one histogram, summed over all processes."""
        histograms = [each[field] for each in self._processes]
        counts = [sum(each) for each in zip(*(each["counts"] for each in histograms), strict=True)]
        total = sum(each["total"] for each in histograms)
        return HistogramMetricFamily(
            PREFIX + name, text, buckets=buckets(TIME_BOUNDS, counts), sum_value=total
        )

    def _member_metrics(self) -> Iterator[Metric]:
        loads: dict[str, Counter[str]] = {}
        connections: dict[str, Counter[str]] = {}
        for each in self._processes:
            section = each["status"]["mergerouter"]
            for target, load in section["members"].items():
                loads.setdefault(target, Counter()).update(load)
            for member, counts in section["memberConnections"].items():
                connections.setdefault(member, Counter()).update(counts)
        for name, field, text in _TARGET_COUNTERS:
            values = {target: load[field] for target, load in loads.items()}
            yield labelled(CounterMetricFamily, name, text, "shard", values)
        pooled = GaugeMetricFamily(
            PREFIX + "member_connections",
            "Connections to each member, without the monitor's.",
            labels=["member", "state"],
        )
        for member, counts in connections.items():
            pooled.add_metric([member, "in_use"], counts["inUse"])
            pooled.add_metric([member, "idle"], counts["available"])
        yield pooled
        created = {member: counts["created"] for member, counts in connections.items()}
        text = "Connections made to each member."
        yield labelled(CounterMetricFamily, "member_connections_created", text, "member", created)
        yield from self._watermark_metrics()

    def _watermark_metrics(self) -> Iterator[Metric]:
        watermark = GaugeMetricFamily(
            PREFIX + "watermark_timestamp_seconds",
            "Cluster time up to which the replica set's events are known, of its last stream.",
            labels=["shard"],
        )
        lag = GaugeMetricFamily(
            PREFIX + "watermark_lag_seconds",
            "Time since that cluster time, by the router's clock, in whole seconds.",
            labels=["shard"],
        )
        held = GaugeMetricFamily(
            PREFIX + "streams_held",
            "Streams of which the replica set is the slowest shard, by reason.",
            labels=["shard", "reason"],
        )
        now = max(each["now"].timestamp() for each in self._processes)
        cursors, failing, buffered = Counter[str](), Counter[str](), Counter[str]()
        marks: dict[str, Timestamp] = {}
        reasons: dict[str, Counter[str]] = {}
        for process in self._processes:
            for target, sums in process["targets"].items():
                cursors[target] += sums["cursors"]
                failing[target] += sums["failing"]
                buffered[target] += sums["bufferedBytes"]
                reasons.setdefault(target, Counter()).update(sums["held"])
                if sums["watermark"] is not None:
                    marks[target] = min(marks.get(target, sums["watermark"]), sums["watermark"])
        for target, mark in marks.items():
            watermark.add_metric([target], mark.time)
            lag.add_metric([target], max(0.0, now - mark.time))
        for target, counts in reasons.items():
            for reason in REASONS:
                held.add_metric([target, reason], counts[reason])
        yield from (watermark, lag, held)
        gauges = (
            ("member_cursors", "Open cursors on the replica set.", cursors),
            ("failing_cursors", "Cursors on the replica set that are being reopened.", failing),
            ("member_buffered_bytes", "Memory of events not read by clients yet.", buffered),
        )
        for name, text, values in gauges:
            yield labelled(GaugeMetricFamily, name, text, "shard", values)

    def _history_metrics(self) -> Iterator[Metric]:
        answers = {target: int(check["answers"]) for target, check in self._checks.items()}
        text = "Whether the primary of the replica set answers: 1 or 0."
        yield labelled(GaugeMetricFamily, "replica_set_up", text, "shard", answers)
        shards = {
            target: check
            for target, check in self._checks.items()
            if check["oldest"] is not None and target != _CONFIG
        }
        oldest = {target: check["oldest"].time for target, check in shards.items()}
        text = "Cluster time of the oldest entry in the primary's oplog."
        yield labelled(GaugeMetricFamily, "oplog_oldest_timestamp_seconds", text, "shard", oldest)
        left = GaugeMetricFamily(
            PREFIX + "history_left_seconds",
            "Seconds of oplog between its oldest entry and the farthest behind client: those with "
            "a cursor (place=cursor), or those that left one within a day (place=departed). +Inf "
            "while the oplog is complete since the replica set was initiated.",
            labels=["shard", "place"],
        )
        for place in ("cursor", "departed"):
            earliest = earliest_place(self._processes, place)
            if earliest is not None:
                for target, check in shards.items():
                    left.add_metric([target, place], seconds_left(check, earliest))
        yield left

    def _sum(self, of: Callable[[Mapping[str, Any]], Mapping[str, int]]) -> Counter[str]:
        summed: Counter[str] = Counter()
        for each in self._processes:
            summed.update(of(each))
        return summed
