"""One run: a cluster of three-member sets under load, faults, watchers, and the audit."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.audit import (
    History,
    ddl_problems,
    image_problems,
    ledger_problems,
    lookup_problems,
    opener_problems,
    watcher_problems,
)
from tests.faults.ddl import WATCHED, DdlWriter
from tests.faults.schedule import Faults
from tests.faults.watchers import INSERTS_AND_DELETES, Opener, Watch, Watcher
from tests.faults.writers import DATABASE, SHARDED, Ledger, Writer
from tests.harness.cluster_base import Client
from tests.harness.ports import free_port
from tests.harness.real_cluster import RealCluster
from tests.harness.routers import start_router
from tests.simulation.truth import key_of

_PASS_SECONDS = 120.0
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


def run_faults(
    cluster: RealCluster,
    seed: int,
    let_happen: Callable[[Faults], None],
    *,
    parameters: dict[str, object] | None = None,
    pause: float = 0.03,
    logs: Path | None = None,
) -> Report:
    """Write, change collections and watch while ``let_happen`` runs faults; then audit.

    Args:
        cluster: at least two shards of three members each, and two mongos; its data is spread.
        seed: determines the behaviour of writers and openers.
        let_happen: runs faults, and returns when done.
        parameters: start parameters of the router.
        pause: seconds between each writer's writes.
        logs: a folder for the routers' logs and the report, kept if there are problems.
    """
    ledger, report = Ledger(), Report()
    parameters = parameters or {}
    router = start_router(
        cluster.configdb, cluster.mongos_uri, port=free_port(), set_parameter=parameters
    )
    others = ",".join(cluster.mongoses.values())
    history = History(f"mongodb://{others}/", Watch(""))
    expanded = History(f"mongodb://{others}/", Watch("", expanded=True))
    marks = Writer("marks", f"mongodb://{others}/", _REGIONS, ledger, seed=seed, pause=pause)
    writers = [
        Writer("direct", f"mongodb://{others}/", _REGIONS, ledger, seed=seed, pause=pause),
        Writer("second", f"mongodb://{others}/", _REGIONS, ledger, seed=seed, pause=pause),
        Writer("routed", router.uri, _REGIONS, ledger, seed=seed, pause=pause),
    ]
    ddl = DdlWriter(f"mongodb://{others}/", seed=seed, pause=1.0)
    looking_up = Watcher("looking up", router.uri, Watch(lookup=True))
    with_images = Watcher("with images", router.uri, Watch("", expanded=True), patience=80)
    routed = [
        Watcher("plain", router.uri, Watch()),
        Watcher("resuming", router.uri, Watch(collection=""), patience=40),
        Watcher("secondary", router.uri, Watch(preference="secondary")),
        Watcher("nearest", router.uri, Watch(SHARDED, "nearest", INSERTS_AND_DELETES), patience=60),
        Watcher("of a dropped collection", router.uri, Watch(WATCHED)),
        looking_up,
        with_images,
    ]
    control = Watcher("control", f"mongodb://{cluster.mongoses['mongos-1']}/", Watch())
    watchers = [*routed, control]
    working: list[Writer | DdlWriter] = [*writers, ddl]
    opener = Opener("opener", router.uri, seed, ("primary", "secondaryPreferred", "nearest"))
    markers = 0

    def checkpoint() -> None:
        """Read the history to a new marker and wait until all watchers have received it."""
        nonlocal markers
        markers += 1
        marks.mark(markers)
        for told in (history, expanded):
            told.read_to(markers)
        marker = key_of(history.events[-1])
        deadline = time.monotonic() + _PASS_SECONDS
        for watcher in watchers:
            while not watcher.has_passed(marker):
                if time.monotonic() > deadline:
                    report.problems.append(
                        f"{watcher.name} has not come to marker {markers}, but to {watcher.last_id}"
                    )
                    break
                time.sleep(0.05)

    def answers() -> dict[str, int]:
        return {each.name: each.replies for each in (*routed, opener)}

    faults = Faults(cluster, router, checkpoint, answers, parameters)
    running: list[threading.Thread] = []

    def begin(work: Callable[[], None]) -> None:
        running.append(threading.Thread(target=work, daemon=True))
        running[-1].start()

    try:
        history.begin()
        expanded.begin()
        for watcher in watchers:
            begin(watcher.run)
        for watcher in watchers:
            if not watcher.opened.wait(60):
                raise RuntimeError(f"{watcher.name} could not open: {watcher.failures}")
        for each in working:
            begin(each.run)
        begin(opener.run)
        let_happen(faults)
        for each in working:
            each.stop()
        opener.stopping.set()
        threads = running[len(routed) + 1 :]
        for thread in threads:
            thread.join(_PASS_SECONDS)
        if any(thread.is_alive() for thread in threads):
            report.problems.append("writers or openers hang")
        checkpoint()
    finally:
        for watching in (*watchers, opener):
            watching.stopping.set()
        for thread in running:
            thread.join(30)
        faults.router.stop()
        if logs is not None:
            _write(logs / "faults.log", [*map(str, faults.log)])
            for number, process in enumerate(faults.routers):
                _write(logs / f"router-{number}.log", process.lines)
    end = key_of(history.events[-1])
    for watcher in watchers:
        for segment in watcher.segments:
            segment.end = min(segment.end or segment.start, end)
        report.events += watcher.events
        report.streams += len(watcher.segments)
        told = expanded if watcher.watch.expanded else history
        report.problems += watcher_problems(watcher, told.events)
    report.problems += lookup_problems(looking_up, history.events)
    report.problems += image_problems(with_images, expanded.events)
    report.problems += ddl_problems(ddl, expanded.events)
    report.problems += ledger_problems(ledger, history.events)
    report.problems += opener_problems(opener, history.events, ledger, end)
    for reading in (*routed, opener):
        report.problems += [
            f"{reading.name} got an error: {failure.error}; {_during(faults, failure.at)}"
            for failure in reading.failures
        ]
    report.control_errors = [failure.error for failure in control.failures]
    report.streams += len(opener.found)
    report.writes, report.faults = ledger.writes, len(faults.log)
    report.summary = [
        f"{report.faults} faults, {report.writes} writes, {len(history.events)} events in the"
        f" history, {report.events} at watchers, {report.streams} streams, slowest opening"
        f" {opener.slowest:.1f} s",
        f"DDL: {dict(_kinds(ddl))}, errors {dict(ddl.errors)}",
        f"writers' retries: { ({w._name: w.errors for w in writers}) }",
        f"errors at the control: {report.control_errors or 'none'}",
    ]
    if logs is not None:
        if report.problems:
            _write(logs / "report.txt", [*report.summary, *report.problems])
        else:
            shutil.rmtree(logs)
    return report


def _kinds(ddl: DdlWriter) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for (kind, _name), count in ddl.acknowledged.items():
        kinds[kind] += count
    return kinds


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
