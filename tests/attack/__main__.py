"""Measure healthy clients and memory beside each attack: router and mongos in the same run.

``python -m tests.attack [--seconds N] [--only TEXT]``. Needs MongoDB's own servers.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo

from bench.kernel import memory, pid_of
from bench.writes import COLLECTION, DATABASE, percentiles, random_pauses, shard_evenly, write_paced
from router.allocator import LOOK_SECONDS
from tests.attack.attackers import ATTACKS, ENDS_MONGOS, ON_ROUTER
from tests.harness.certificates import Authority
from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings, write_key_file
from tests.harness.until import wait_for

MIB = 1024 * 1024
PAUSE = 0.05
_PING_PAUSE = 0.02
_SETTLE = LOOK_SECONDS + 2


class Healthy:
    """Healthy clients of a server, and a look at its memory: threads that run until ``stop``."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.pings: list[float] = []
        """The seconds that pings have taken."""
        self.failed = 0
        """The number of pings that have failed."""
        self.arrived: dict[int, float] = {}
        """When the events of documents came (``time.perf_counter``), by ``_id``."""
        self.mebibytes = 0
        """The most memory that the server has had."""
        self._opened, self._ended = threading.Event(), threading.Event()
        steps = (self._ping, self._watch, self._look)
        self._threads = [threading.Thread(target=each, daemon=True) for each in steps]
        for thread in self._threads:
            thread.start()
        if not self._opened.wait(30):
            raise RuntimeError(f"no stream from {server.uri}")

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def _ping(self) -> None:
        with Client(self._server.uri) as client:
            while not self._ended.wait(_PING_PAUSE):
                begun = time.perf_counter()
                try:
                    client.admin.command("ping")
                except pymongo.errors.PyMongoError:
                    self.failed += 1
                self.pings.append(time.perf_counter() - begun)

    def _watch(self) -> None:
        with Client(self._server.uri) as client, client[DATABASE][COLLECTION].watch() as stream:
            self._opened.set()
            while not self._ended.is_set():
                event = stream.try_next()
                if event is not None:
                    self.arrived[event["documentKey"]["_id"]] = time.perf_counter()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.mebibytes = max(self.mebibytes, self._server.mebibytes)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is attacked, and its process."""

    name: str
    port: int
    pid: int
    admin_port: int = 0

    @property
    def uri(self) -> str:
        return f"mongodb://root:root@127.0.0.1:{self.port}/"

    @property
    def mebibytes(self) -> int:
        return memory(self.pid) // MIB


class Measurement:
    """Measures servers of one cluster, one attack at a time."""

    def __init__(self, cluster: TestCluster, seconds: float) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._since = _write_backlog(cluster)
        self._number = 0
        self.failed: list[str] = []
        """The attacks that did not take place, with their servers."""

    def measure(self, server: Server, name: str | None) -> dict[str, Any]:
        """Return the figures of healthy clients during an attack, or without one."""
        before, healthy, attackers = server.mebibytes, Healthy(server), None
        if name is not None:
            numbers = (server.port, self._seconds, server.admin_port, self._since)
            command = [sys.executable, "-m", "tests.attack.attackers", name, *map(str, numbers)]
            attackers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            time.sleep(1.5)
        with Client(self._cluster.mongos_uri) as client:
            pauses = random_pauses(int((self._seconds - 2) / PAUSE), PAUSE)
            documents = client[DATABASE][COLLECTION]
            acknowledged = write_paced(documents, self._number, pauses)
            self._number += len(pauses)
        wait_for(lambda: acknowledged.keys() <= healthy.arrived.keys(), "the events", 60)
        late = [healthy.arrived[number] - at for number, at in acknowledged.items()]
        if attackers is not None:
            ends, _ = attackers.communicate(timeout=self._seconds + 60)
            print(f"{name}: {ends.strip()}", file=sys.stderr)
            if attackers.returncode:
                self.failed.append(f"{name} on {server.name}")
        healthy.stop()
        time.sleep(_SETTLE)
        figures = {"attack": name or "none", "server": server.name, "before": before}
        figures |= {"most": healthy.mebibytes, "after": server.mebibytes, "failed": healthy.failed}
        return figures | {"stream": percentiles(late), "ping": percentiles(healthy.pings)}


def _write_backlog(cluster: TestCluster) -> int:
    """Write 100 MB of events on two shards; return the second of the cluster time before."""
    with Client(cluster.mongos_uri) as client:
        since = int(client.admin.command("ping")["operationTime"].time)
        for shard in (0, 1):
            for number in range(5):
                pad, first = "x" * 250_000, -1 - 1000 * shard - 100 * number
                client[DATABASE][COLLECTION].insert_many(
                    [{"_id": first - each, "s": shard, "pad": pad} for each in range(40)]
                )
    return since


def _row(figures: dict[str, Any]) -> str:
    stream, ping = figures["stream"], figures["ping"]
    return (
        f"| {figures['attack']} | {figures['server']} | {stream['p50']:.0f} | "
        f"{stream['p99']:.0f} | {ping['p50']:.1f} | {ping['p99']:.0f} | "
        f"{figures['before']} | {figures['most']} | {figures['after']} |"
    )


HEAD = """\
| attack | on | stream p50 ms | p99 | ping p50 ms | p99 | MiB before | most | after |
|---|---|---:|---:|---:|---:|---:|---:|---:|"""


def main() -> int:
    """Run the attacks and print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--only", default="", help="attacks whose name has this text")
    parser.add_argument("--router-only", action="store_true", help="leave mongos out")
    options = parser.parse_args()
    if "MERGEROUTER_MONGO_BIN" not in os.environ:
        parser.error("set MERGEROUTER_MONGO_BIN to the folder of mongod and mongos")
    with ExitStack() as owned:
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory()))
        key = write_key_file(folder)
        settings = ServerSettings(noop_interval=1, key_file=key)
        cluster = owned.enter_context(start_cluster(2, settings=settings))
        shard_evenly(cluster)
        with Client(cluster.mongos_uri) as client:
            client.admin.command("createUser", "nobody", pwd="nobody", roles=[])
        upstream = f"mongodb://{cluster.mongos}/"
        router = owned.enter_context(
            start_router(cluster.configdb, upstream, keyFile=key, admin_port=0)
        )
        authority = Authority(folder)
        flags = {**authority.router_flags(authority.issue("server")), "tlsMode": "allowTLS"}
        with_tls = owned.enter_context(
            start_router(cluster.configdb, upstream, keyFile=key, admin_port=0, **flags)
        )
        servers = [Server("router", router.port, router.process.pid, router.admin_port)]
        tls = Server("router", with_tls.port, with_tls.process.pid, with_tls.admin_port)
        if not options.router_only:
            port = int(cluster.mongos.rpartition(":")[2])
            servers.append(Server("mongos", port, pid_of("mongos", port)))
        measurement = Measurement(cluster, options.seconds)
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        print(HEAD, flush=True)
        for name in [None, *ATTACKS]:
            if options.only and (name is None or options.only not in name):
                continue
            for server in servers:
                only_router = any(part in (name or "") for part in ON_ROUTER)
                if server.name == "mongos" and (name in ENDS_MONGOS or only_router):
                    continue
                attacked = tls if name is not None and "TLS port" in name else server
                print(_row(measurement.measure(attacked, name)), flush=True)
        print(f"load of the machine: {os.getloadavg()[0]:.1f}")
        for each in measurement.failed:
            print(f"the attackers could not attack: {each}", file=sys.stderr)
    return 1 if measurement.failed else 0


if __name__ == "__main__":
    sys.exit(main())
