"""Play what an operator is paged for: a shard, a client and a job stop, under a real Prometheus.

``python -m tests.alert_stories`` starts a cluster (of MongoDB's servers if MERGEROUTER_MONGO_BIN
names them), a router, a client, a job of Spark, and Debian's ``prometheus`` with the rules of
deploy/, whose times are shortened. Each story must raise its alerts and no other; what they said is
printed. The exit status is 1 if one does not.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymongo
import yaml
from pymongo.errors import PyMongoError

from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, start_router
from tests.spark.quick_session import QUICK

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy" / "prometheus"
# By what the times of the rules are divided, and which numbers of expressions are times.
FASTER = 5
_LAGS = r"(?<=> )(60|120|300)\b"
# Seconds in which nothing may fire before the first story, and after which other alerts would have.
QUIET = 20
LONGER = 420 / FASTER + 20
PATIENCE = 240


def faster_rules() -> dict[str, Any]:
    """Return the rules with all times divided by FASTER; those of more than an hour remain."""

    def seconds(text: str) -> str:
        number, unit = int(text[:-1]), text[-1]
        return f"{number * {'s': 1, 'm': 60, 'h': 3600}[unit] // FASTER}s"

    rules: dict[str, Any] = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = seconds(rule["for"])
            text = re.sub(r"\[(\d+m)\]", lambda found: f"[{seconds(found[1])}]", rule["expr"])
            rule["expr"] = re.sub(_LAGS, lambda found: str(int(found[1]) // FASTER), text)
    return rules


class Prometheus:
    """Scrapes the targets of two jobs every two seconds: a router whose shard hangs takes one."""

    def __init__(self, folder: Path, targets: Mapping[str, int]) -> None:
        (folder / "rules.yaml").write_text(yaml.safe_dump(faster_rules()))
        scrapes = [
            {
                "job_name": name,
                "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"cluster": "a"}}],
            }
            for name, port in targets.items()
        ]
        configuration = {
            "global": {"scrape_interval": "2s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": scrapes,
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        self._address = f"127.0.0.1:{free_port()}"
        command = ["prometheus", f"--config.file={folder}/prometheus.yaml"]
        command += [f"--web.listen-address={self._address}", f"--storage.tsdb.path={folder}/data"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def firing(self) -> dict[str, str]:
        """Return the summaries of the alerts that fire, by their names."""
        address = f"http://{self._address}/api/v1/alerts"
        with urllib.request.urlopen(address, timeout=10) as reply:
            alerts = json.load(reply)["data"]["alerts"]
        return {
            each["labels"]["alertname"]: each["annotations"]["summary"]
            for each in alerts
            if each["state"] == "firing"
        }

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


class Client:
    """Follows shop.orders as the application "reports", until it is stopped."""

    def __init__(self, router: RouterProcess) -> None:
        self.reads = threading.Event()
        self.reads.set()
        self._client: pymongo.MongoClient[Any] = pymongo.MongoClient(router.uri, appname="reports")
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._client.shop.orders.watch(max_await_time_ms=500) as stream:
            while True:
                self.reads.wait()
                stream.try_next()


class Writer:
    """Writes to both shards of shop.orders, some documents a second."""

    def __init__(self, cluster: TestCluster) -> None:
        uri = cluster.mongos_uri
        admin = pymongo.MongoClient[Any](uri).admin
        first, second = list(cluster.shards)[:2]
        admin.command("enableSharding", "shop", primaryShard=first)
        admin.command("shardCollection", "shop.orders", key={"place": 1})
        admin.command("split", "shop.orders", middle={"place": 1})
        admin.command("moveChunk", "shop.orders", find={"place": 1}, to=second)
        for place in (0, 1):
            threading.Thread(target=self._run, args=(uri, place), daemon=True).start()

    def _run(self, uri: str, place: int) -> None:
        orders = pymongo.MongoClient[Any](uri, timeoutMS=2000).shop.orders
        while True:
            with suppress(PyMongoError):  # its shard is stopped
                orders.insert_one({"place": place, "text": "x" * 100})
            time.sleep(0.2)


@contextmanager
def job(router: RouterProcess, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job with metrics on a port, in a process group of its own."""
    command = [sys.executable, "-m", "spark_sink.cli", "run", "shop.orders", "--uri", router.uri]
    command += ["--out", str(folder / "tables"), "--trigger", "1 second", f"--metrics-port={port}"]
    command += [*(f"--conf={name}={text}" for name, text in QUICK.items())]
    with (folder / "job.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Stories:
    """Plays stories, and keeps what was wrong."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self.wrong: list[str] = []

    def until_quiet(self) -> None:
        """Wait until no alert has fired for QUIET seconds."""
        until, quiet = time.monotonic() + PATIENCE, time.monotonic() + QUIET
        while time.monotonic() < quiet:
            if firing := self._firing():
                quiet = time.monotonic() + QUIET
            if time.monotonic() > until:
                self.wrong.append(f"alerts that do not end: {firing}")
                return
            time.sleep(1)

    def play(
        self, name: str, begin: Callable[[], None], end: Callable[[], None], said: Mapping[str, str]
    ) -> None:
        """Begin a story, wait for its alerts, and look whether others follow; then end it.

        Args:
            name: of the story.
            begin: stops something.
            end: lets it go on.
            said: by the name of each alert, a part of what it must say.
        """
        print(f"\n{name}", flush=True)
        seen: dict[str, str] = {}
        begin()
        until, longer = time.monotonic() + PATIENCE, time.monotonic() + LONGER
        while time.monotonic() < longer or not said.keys() <= seen.keys():
            for alert, summary in self._firing().items():
                if alert not in seen:
                    print(f"  {alert}: {summary}", flush=True)
                seen[alert] = summary
            if time.monotonic() > until:
                break
            time.sleep(1)
        end()
        self.wrong += [f"{name}: no {each}" for each in said.keys() - seen.keys()]
        self.wrong += [f"{name}: also {each}: {seen[each]}" for each in seen.keys() - said.keys()]
        for alert, part in said.items():
            if part not in seen.get(alert, part):
                self.wrong.append(f"{name}: {alert} says {seen[alert]!r}, without {part!r}")
        self.until_quiet()

    def _firing(self) -> dict[str, str]:
        try:
            return self._prometheus.firing()
        except OSError:  # it starts
            return {}


def play_all(stack: ExitStack, folder: Path) -> list[str]:
    """Start everything, play the stories, and return what was wrong."""
    admin, metrics = free_port(), free_port()
    cluster = stack.enter_context(start_cluster(2, noop_interval=1))
    router = stack.enter_context(
        start_router(cluster.configdb, upstream=cluster.mongos_uri, admin_port=admin)
    )
    Writer(cluster)
    client = Client(router)
    running = stack.enter_context(ExitStack())
    running.enter_context(job(router, folder, metrics))
    log, begun = folder / "job.log", time.monotonic()
    while "batch 2:" not in log.read_text():
        if time.monotonic() - begun > PATIENCE:
            return [f"the job does not start: {log.read_text()[-2000:]}"]
        time.sleep(1)
    prometheus = Prometheus(folder, {"mergerouter": admin, "mergerouter-job": metrics})
    stack.callback(prometheus.close)
    stories = Stories(prometheus)
    stories.until_quiet()
    shard = next(iter(cluster.shards))
    stories.play(
        f"{shard} is stopped",
        lambda: cluster.hang_member(shard),
        lambda: cluster.wake_member(shard),
        {
            "MergerouterReplicaSetDown": f"The primary of {shard} does not answer",
            "MergerouterWatermarkBehind": f"The known events of {shard} are ",
        },
    )
    stories.play(
        "a client stops reading",
        client.reads.clear,
        client.reads.set,
        {"MergerouterClientBehind": "Client reports at 127.0.0.1 reads shop.orders slowly"},
    )
    stories.play(
        "the job is killed",
        running.close,
        lambda: _run_again(running, router, folder, metrics),
        {"MergerouterJobDown": f"The job at 127.0.0.1:{metrics} does not answer Prometheus"},
    )
    print("\nwhat the job said of them:")
    for line in log.read_text().splitlines():
        if re.match(r"the stream|Spark has|stopped|error|127", line):
            print(f"  {line}")
    return stories.wrong


def _run_again(running: ExitStack, router: RouterProcess, folder: Path, port: int) -> None:
    running.enter_context(job(router, folder, port))


def main() -> None:
    """Play the stories, print what was wrong, and exit with 1 if something was."""
    if shutil.which("prometheus") is None:
        sys.exit("prometheus is not installed: apt-get install prometheus")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wrong = play_all(stack, folder)
    print(
        "\n" + ("\n".join(wrong) if wrong else "each alert says what is true, and no other fires")
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
