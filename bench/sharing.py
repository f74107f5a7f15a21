"""Streams that share a scan of the oplogs: equal ones, one filter each, one collection each."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from pymongo import MongoClient

from bench.events import FIRST_SECOND, TENANTS
from bench.kernel import cpu_of, cpu_seconds, memory, pid_of
from bench.programs import Program, port_of, results_of, running, serve
from bench.replaying_cluster import ReplayedCluster, replayed_cluster
from bench.suite import Column, Options, Table, has_real_servers, medians
from bench.writes import COLLECTION, DATABASE, shard_evenly
from tests.harness.clusters import TestCluster, start_real_cluster

SHARDS, SIZE, PROCESSES = 4, 600, 2
EQUAL = {1: 200_000, 10: 100_000, 100: 40_000, 1000: 4_000}
"""Numbers of clients of one stream, and the events that each of them reads."""
FILTERS = (1, 10, 100, 1000)
EVENTS = 400_000

REAL_SHARDS = 2
WRITES, BATCH = 8_000, 200
ELSEWHERE = "elsewhere"
_SETTLED = 1.5  # seconds after which the cursors that the openings needed are closed
_PADDING = 300


class Case(NamedTuple):
    """Watchers of real servers, and what is written.

    ``watch`` is what each watches (``bench.watchers``), ``unwatched`` the fraction of the writes
    that goes to a collection that nobody watches, and ``size`` the padding of a document there.
    """

    watch: str
    numbers: tuple[int, ...]
    modes: tuple[str, ...]
    unwatched: float = 0.0
    size: int = _PADDING


_MODES = ("shareScopes=never", "shareScopes=always")
CASES = (
    Case("tenant", (1, 10, 20, 100, 300), ("shareFilters=never", "shareFilters=auto")),
    Case("collection", (2, 5, 20), _MODES),
    Case("collection", (2, 5, 20), _MODES, 0.9),
    Case("collection", (2, 5, 20), _MODES, 0.9, 10_000),
)

REPLAYED = (
    Column("clients", "clients"),
    Column("filters", "filters"),
    Column("events read/s", "rate", ",.0f"),
    Column("delivered to clients/s", "delivered", ",.0f"),
    Column("router CPU µs/event read", "cpu", ".2f"),
    Column("and client", "cpu_each", ".2f"),
    Column("events a batch", "batch", ",.0f"),
    Column("cursors on shards and config server", "cursors", ",.0f"),
    Column("router KiB a client, idle", "idle", ",.0f"),
    Column("router MiB, at most", "busy", ",.0f"),
)
REPLAYED_NOTE = (
    f"{SHARDS} replaying shards, {SIZE}-byte events of {TENANTS} tenants, shareFilters=always. "
    "Equal: all clients open one cluster stream; else each has the filter of one tenant, and with "
    f"few most events match none. The clients are {PROCESSES} processes on the same processors."
)
REAL = (
    Column("watchers", "watchers"),
    Column("each of a", "watch"),
    Column("unwatched writes", "unwatched", ".0%"),
    Column("their bytes", "size", ",d"),
    Column("watched through", "way"),
    Column("cursors on shards and config server", "cursors", ",.0f"),
    Column("shards' CPU µs/write", "shards", ",.0f"),
    Column("mongos's", "mongos", ",.0f"),
    Column("router's", "router", ",.0f"),
    Column("seconds", "seconds", ".1f"),
)
REAL_NOTE = (
    f"{REAL_SHARDS} shards, {WRITES} inserts in batches of {BATCH} through mongos, until every "
    "watcher has its events; each watches its own tenant of one collection, or a collection of its "
    "own. The CPU includes the writes; the shards' includes the config server's."
)


def run(options: Options) -> list[Table]:
    """Measure replaying shards and, if MERGEROUTER_MONGO_BIN names their folder, real servers."""
    cases = [(clients, events, "equal") for clients, events in EQUAL.items()]
    cases += [(clients, EVENTS, "tenant") for clients in FILTERS]
    replayed = [
        _replayed(options, clients, options.scaled(events, events // 4), watch)
        for clients, events, watch in cases
    ]
    tables = [Table("clients that share a stream (medians)", REPLAYED, replayed, REPLAYED_NOTE)]
    if has_real_servers():
        with start_real_cluster(REAL_SHARDS, noop_interval=1) as cluster:
            shard_evenly(cluster)
            _spread_collections(cluster)
            rows = list(_real(cluster, options))
        tables.append(Table("real servers (medians)", REAL, rows, REAL_NOTE))
    return tables


# Replaying shards.


def _replayed(options: Options, clients: int, events: int, watch: str) -> dict[str, Any]:
    print(f"{clients} clients, {watch}, replayed")
    with replayed_cluster(SHARDS, events, SIZE) as cluster:
        taken = [_replay(cluster, clients, watch) for _ in range(options.runs)]
    filters = "one each" if watch == "tenant" else ""
    return {"clients": clients, "filters": filters, **medians(taken)}


def _replay(cluster: ReplayedCluster, clients: int, watch: str) -> dict[str, float]:
    each = cluster.events // TENANTS if watch == "tenant" else cluster.events
    with serve(cluster.configdb, "--setParameter", "shareFilters=always") as (port, pid):
        before = memory(pid)
        with _drainers(port, clients, each, watch) as programs:
            idle = memory(pid)
            cursors = _open_cursors([*cluster.ports, cluster.configdb])
            used, begun = cpu_seconds(pid), time.perf_counter()
            results = results_of(programs)
            used, took = cpu_seconds(pid) - used, time.perf_counter() - begun
            busy = memory(pid, peak=True)
    delivered = sum(result["events"] for result in results)
    return {
        "rate": cluster.events / took,
        "delivered": delivered / took,
        "cpu": used / cluster.events * 1e6,
        "cpu_each": used / delivered * 1e6,
        "batch": delivered / sum(result["batches"] for result in results),
        "cursors": cursors,
        "idle": (idle - before) / clients / 1024,
        "busy": busy / 1024 / 1024,
    }


@contextmanager
def _drainers(port: int, clients: int, events: int, watch: str) -> Iterator[list[Program]]:
    """Start processes that open the clients' streams, and drain them when they are told to."""
    shares = [clients // PROCESSES + (n < clients % PROCESSES) for n in range(PROCESSES)]
    wanted = ("--cluster", "--start", f"{FIRST_SECOND}:1", "--events", str(events))
    with ExitStack() as stack:
        programs = []
        for number, share in enumerate(filter(None, shares)):
            arguments = ("--clients", str(share), "--first", str(number * shares[0]))
            program = Program("bench.watchers", str(port), *wanted, *arguments, "--watch", watch)
            programs.append(stack.enter_context(program))
        for program in programs:
            program.line()
        yield programs


# Real servers.


def _spread_collections(cluster: TestCluster) -> None:
    """Distribute the collections of watchers, and one that nobody watches, over all shards."""
    numbers = range(max(number for case in CASES[1:] for number in case.numbers))
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        for name in (ELSEWHERE, *(f"{COLLECTION}{number}" for number in numbers)):
            client.admin.command(
                "shardCollection", f"{DATABASE}.{name}", key={"_id": "hashed"},
                numInitialChunks=REAL_SHARDS,
            )  # fmt: skip


def _real(cluster: TestCluster, options: Options) -> Iterator[dict[str, Any]]:
    mongos, servers = port_of(cluster.mongos), [*cluster.shards.values(), cluster.configdb]
    members = [pid_of("mongod", port_of(each)) for each in servers]
    processes = {"shards": members, "mongos": [pid_of("mongos", mongos)]}

    def row(case: Case, way: str, port: str, watchers: int, *pids: int) -> dict[str, Any]:
        print(f"{watchers} watchers of a {case.watch} each: {way}")
        counted = {**processes, "router": pids} if pids else processes
        taken = [_measure(cluster, case, port, watchers, counted) for _ in range(options.runs)]
        figures = {"watchers": watchers, **case._asdict(), "way": way}
        return {**figures, **medians(taken)}

    for case in CASES[:2] if options.quick else CASES:
        yield row(case, "nobody", "", 0)
        for watchers in case.numbers[:2] if options.quick else case.numbers:
            yield row(case, "mongos", mongos, watchers)
            for mode in case.modes:
                parameters = [f"--setParameter={mode}"]
                parameters += [f"--setParameter=maxStreams{per}=1000" for per in ("", "PerClient")]
                arguments = (f"--upstream={cluster.mongos_uri}", *parameters)
                with serve(cluster.configdb, *arguments) as (port, pid):
                    yield row(case, f"router, {mode.partition('=')[2]}", str(port), watchers, pid)


def _measure(
    cluster: TestCluster,
    case: Case,
    port: str,
    watchers: int,
    processes: Mapping[str, Sequence[int]],
) -> dict[str, float]:
    """Write once, watched by ``watchers`` streams through ``port``; return what it costs.

    That is the CPU of ``processes`` in µs a write, and ``seconds`` until the streams have all
    events.
    """
    servers, cursors = [*cluster.shards.values(), cluster.configdb], {}
    expected = round(WRITES * (1 - case.unwatched))
    arguments = ("--clients", str(watchers), "--watch", case.watch, "--expect", str(expected))
    with ExitStack() as stack:
        if watchers:
            idle = _open_cursors(servers)
            program = stack.enter_context(running("bench.watchers", port, *arguments))
            time.sleep(_SETTLED)
            cursors = {"cursors": _open_cursors(servers) - idle}
        before, begun = cpu_of(processes), time.perf_counter()
        _write(cluster, max(1, watchers), case)
        if watchers:
            program.line()  # when all events have arrived
        after, took = cpu_of(processes), time.perf_counter() - begun
    used = {name: (after[name] - before[name]) / WRITES * 1e6 for name in after}
    return {"seconds": took, **used, **cursors}


def _write(cluster: TestCluster, watchers: int, case: Case) -> None:
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        for step in range(WRITES // BATCH):
            unwatched = round(BATCH * case.unwatched)
            if unwatched:
                pad = "x" * case.size
                client[DATABASE][ELSEWHERE].insert_many([{"pad": pad} for _ in range(unwatched)])
            name = f"{COLLECTION}{step % watchers}" if case.watch == "collection" else COLLECTION
            numbers = range(step * BATCH, (step + 1) * BATCH - unwatched)
            documents = [
                {"s": n % REAL_SHARDS, "tenant": n % watchers, "pad": "x" * _PADDING}
                for n in numbers
            ]
            client[DATABASE][name].insert_many(documents, ordered=False)


def _open_cursors(servers: Sequence[str]) -> int:
    """Return the number of cursors that servers, given by their host strings, have open."""
    count = 0
    for port in map(port_of, servers):
        with MongoClient[dict[str, Any]]("127.0.0.1", int(port), directConnection=True) as client:
            status = client.admin.command("serverStatus")
            count += int(status["metrics"]["cursor"]["open"]["total"])
    return count
