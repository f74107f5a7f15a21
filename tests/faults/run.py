"""One run: a cluster of three-member sets under load, faults, watchers, and the audit."""

import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.audit import (
    History,
    image_problems,
    ledger_problems,
    lookup_problems,
    opener_problems,
    watcher_problems,
)
from tests.faults.schedule import Faults
from tests.faults.watchers import INSERTS_AND_DELETES, Opener, Watch, Watcher
from tests.faults.writers import DATABASE, REMADE, SHARDED, Ledger, Writer
from tests.harness.cluster_base import Client
from tests.harness.ports import free_port
from tests.harness.real_cluster import RealCluster
from tests.harness.routers import start_router
from tests.harness.until import Deadline
from tests.simulation.segments import key_of

_PASS_SECONDS = 120.0
_REMAKES = 0.02
_REGIONS = "ahpt"
"""``a`` lies on shard0; ``h`` and ``t`` on shard1; ``p`` moves."""


def shard_the_data(cluster: RealCluster) -> None:
    """Spread the sharded collection, which records images, over the first two shards."""
    with Client(cluster.mongos_uri) as client:
        namespace = f"{DATABASE}.{SHARDED}"
        client.admin.command("enableSharding", DATABASE, primaryShard="shard0")
        client.admin.command("shardCollection", namespace, key={"region": 1})
        for at in ("h", "p", "t"):
            client.admin.command("split", namespace, middle={"region": at})
        images = {"enabled": True}
        client[DATABASE].command("collMod", SHARDED, changeStreamPreAndPostImages=images)
        for at in ("h", "p", "t"):
            client.admin.command("moveChunk", namespace, find={"region": at}, to="shard1")


@dataclass(slots=True)
class Report:
    """The result of a run."""

    problems: list[str] = field(default_factory=list)
    """Lost, repeated and misplaced events, and errors of the router's drivers."""
    control_errors: list[str] = field(default_factory=list)
    """Errors of the drivers on mongos."""
    events: int = 0
    writes: int = 0
    faults: int = 0
    streams: int = 0
    summary: list[str] = field(default_factory=list)


class Run:
    """The clients of a run: writers, and watchers whose events are audited.

    Args:
        cluster: at least two shards of three members each, and two mongos; its data is spread.
        seed: determines the behaviour of writers and openers.
        parameters: start parameters of the router.
        pause: seconds between each writer's writes.
    """

    def __init__(
        self, cluster: RealCluster, seed: int, parameters: dict[str, object], pause: float
    ) -> None:
        router = start_router(
            cluster.configdb, cluster.mongos_uri, port=free_port(), set_parameter=parameters
        )
        uri, others = router.uri, f"mongodb://{','.join(cluster.mongoses.values())}/"
        self.report, self.ledger = Report(), Ledger()
        self.faults = Faults(cluster, router, self.checkpoint, self._answers, parameters)
        self._history = History(others, Watch(""))
        self._expanded = History(others, Watch("", expanded=True))
        self._marks, *self._writers = (
            Writer(name, to, _REGIONS, self.ledger, seed=seed, pause=pause, remakes=remakes)
            for name, to, remakes in (
                ("marks", others, 0.0), ("direct", others, _REMAKES), ("second", others, 0.0),
                ("routed", uri, 0.0),
            )
        )  # fmt: skip
        self._markers = 0
        self._looking_up = Watcher("looking up", uri, Watch(lookup=True))
        self._with_images = Watcher("with images", uri, Watch("", expanded=True), patience=80)
        filtered = Watch(SHARDED, "nearest", INSERTS_AND_DELETES)
        self._routed = [
            Watcher("plain", uri, Watch()),
            Watcher("resuming", uri, Watch(collection=""), patience=40),
            Watcher("secondary", uri, Watch(preference="secondary")),
            Watcher("nearest", uri, filtered, patience=60),
            Watcher("of a dropped collection", uri, Watch(REMADE)),
            self._looking_up,
            self._with_images,
        ]
        self._control = Watcher("control", f"mongodb://{cluster.mongoses['mongos-1']}/", Watch())
        self._watchers = [*self._routed, self._control]
        self._opener = Opener("opener", uri, seed, ("primary", "secondaryPreferred", "nearest"))

    def work(self, let_happen: Callable[[Faults], None]) -> None:
        """Write and watch while ``let_happen`` runs faults."""
        watching: list[threading.Thread] = []
        problems = self.report.problems
        try:
            self._history.begin()
            self._expanded.begin()
            watching += [_started(watcher.run, problems) for watcher in self._watchers]
            for watcher in self._watchers:
                if not watcher.opened.wait(60):
                    raise RuntimeError(f"{watcher.name} could not open: {watcher.failures}")
            working = [_started(writer.run, problems) for writer in self._writers]
            working.append(_started(self._opener.run, problems))
            let_happen(self.faults)
            for writer in self._writers:
                writer.stop()
            self._opener.stopping.set()
            for thread in working:
                thread.join(_PASS_SECONDS)
            if any(thread.is_alive() for thread in working):
                self.report.problems.append("writers or openers hang")
            self.checkpoint()
        finally:
            for watcher in (*self._watchers, self._opener):
                watcher.stopping.set()
            for thread in watching:
                thread.join(30)
            self.faults.router.stop()

    def checkpoint(self) -> None:
        """Read the history to a new marker and wait until all watchers have received it."""
        self._markers += 1
        self._marks.mark(self._markers)
        for told in (self._history, self._expanded):
            told.read_to(self._markers)
        marker = key_of(self._history.events[-1])
        deadline = Deadline(_PASS_SECONDS)
        for watcher in self._watchers:
            try:
                while not watcher.has_passed(marker):
                    deadline.check(f"marker {self._markers} at {watcher.name}", watcher.last_id)
                    time.sleep(0.05)
            except AssertionError as error:
                self.report.problems.append(str(error))

    def _answers(self) -> dict[str, int]:
        return {each.name: each.replies for each in (*self._routed, self._opener)}

    def audit(self) -> None:
        """Report what differs between watchers, the history and the ledger."""
        report, history, expanded = self.report, self._history.events, self._expanded.events
        end = key_of(history[-1])
        for watcher in self._watchers:
            for segment in watcher.segments:
                segment.end = min(segment.end or segment.start, end)
            report.events += watcher.events
            report.streams += len(watcher.segments)
            told = expanded if watcher.watch.expanded else history
            report.problems += watcher_problems(watcher, told)
        report.problems += lookup_problems(self._looking_up, history)
        report.problems += image_problems(self._with_images, expanded)
        report.problems += ledger_problems(self.ledger, history)
        report.problems += opener_problems(self._opener, history, self.ledger, end)
        for reading in (*self._routed, self._opener):
            report.problems += [
                f"{reading.name} got an error: {failure.error}; {_during(self.faults, failure.at)}"
                for failure in reading.failures
            ]
        report.control_errors = [failure.error for failure in self._control.failures]
        report.streams += len(self._opener.found)
        report.writes, report.faults = self.ledger.writes, len(self.faults.log)
        report.summary = [
            f"{report.faults} faults, {report.writes} writes, {len(history)} events in the history,"
            f" {report.events} at watchers, {report.streams} streams, slowest opening"
            f" {self._opener.slowest:.1f} s",
            f"{self.ledger.drops} drops of a collection",
            f"writers' retries: { ({w.name: w.errors for w in self._writers}) }",
            f"errors at the control: {report.control_errors or 'none'}",
        ]


def run_faults(
    cluster: RealCluster,
    seed: int,
    let_happen: Callable[[Faults], None],
    *,
    parameters: dict[str, object] | None = None,
    pause: float = 0.03,
    logs: Path | None = None,
) -> Report:
    """Run clients while ``let_happen`` runs faults and returns when done; then audit.

    The other arguments are those of ``Run``. ``logs`` is a folder for the routers' logs and the
    report, kept if there are problems.
    """
    run = Run(cluster, seed, parameters or {}, pause)
    try:
        run.work(let_happen)
    finally:
        if logs is not None:
            _write(logs / "faults.log", [*map(str, run.faults.log)])
            for number, process in enumerate(run.faults.routers):
                _write(logs / f"router-{number}.log", process.lines)
    run.audit()
    report = run.report
    if logs is not None:
        if report.problems:
            _write(logs / "report.txt", [*report.summary, *report.problems])
        else:
            shutil.rmtree(logs)
    return report


def _started(work: Callable[[], None], problems: list[str]) -> threading.Thread:
    """Run ``work`` in a thread; an error that ends it is one of the run's ``problems``."""

    def noticed() -> None:
        try:
            work()
        except Exception as error:
            problems.append(f"{work.__qualname__} died: {error!r}")
            raise

    thread = threading.Thread(target=noticed, daemon=True)
    thread.start()
    return thread


def _write(file: Path, lines: Iterable[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def _during(faults: Faults, at: float) -> str:
    """Return the faults in progress, or just over, at a time."""
    return "during " + ", ".join(
        f"{what} ({at - begun:.1f} s after its begin)"
        for begun, ended, what in faults.log
        if begun <= at <= ended + 15
    )
