"""The demo's sequence: start, write, watch, add a shard, let Spark catch up, stop, judge."""

import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from bson import Timestamp
from pymongo import AsyncMongoClient
from rich.console import Console
from rich.live import Live

from embedded.demo.job_tables import JobTables
from embedded.demo.ledger import Change, Seen, Verdict, judge, judge_table
from embedded.demo.load import COLLECTION, DATABASE, Client, Load, move_range, shard_collection
from embedded.demo.processes import Program, ProgramError
from embedded.demo.security import ADMIN, SPARK, DemoSecurity
from embedded.demo.view import LiveView, closing, verdict_table

START_SECONDS = 60.0
SNAPSHOT_SECONDS = 300.0
CATCH_UP_SECONDS = 60.0
REFRESH_SECONDS = 0.25
OUTAGE_SECONDS = 8.0
LATE_SHARD = "shard3"
KILLED_SHARD = "shard1"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo.

    Args:
        folder: for logs and Spark's files.
        seconds: how long to write.
        rate: operations a second.
        keep: whether to leave the programs running after the verdict.
        outage: whether a shard is killed for some seconds while the load runs.
        spark: whether to run the Spark query.
        port: the router's port; 0 picks a free one.
        secure: whether everything has users, passwords and TLS.
        picture: a path to save the live view to as SVG, or None.
    """

    folder: Path
    seconds: float = 20.0
    rate: float = 400.0
    keep: bool = False
    outage: bool = False
    spark: bool = True
    port: int = 0
    secure: bool = False
    picture: Path | None = None


class Demo:
    """One run of the demo: its programs, what they write and read, and the verdict."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        self._console = Console()
        self._written: list[Change] = []
        self._seen = Seen()
        self._committed = JobTables(options.folder / "job")
        self._spark: Program | None = None
        self._spark_started = 0.0
        self._is_late = False
        self._security = DemoSecurity(options.folder) if options.secure else None

    async def run(self) -> list[Verdict]:
        """Run the whole demo and return a verdict for each reader.

        Raises:
            ProgramError: a program did not start or ended early; the message ends with its output.
        """
        options = self._options
        async with AsyncExitStack() as stack:
            self._console.print("starting three shards, a config server, mongos and the router …")
            cluster = await anyio.to_thread.run_sync(self._start_cluster, stack)
            if self._security is not None:
                await self._security.create_users(cluster["mongos"])
            router = await anyio.to_thread.run_sync(self._start_router, stack, cluster)
            address = f"127.0.0.1:{router['port']}"
            view = self._live_view(address, int(router["feedPort"]))
            client: Client = AsyncMongoClient(self._uri(address, ADMIN))
            stack.push_async_callback(client.close)
            await shard_collection(client, sorted(cluster["shards"]))
            start = await self._now(client)
            if self._options.spark:
                self._spark = stack.enter_context(self._start_spark(address))
                self._spark_started = anyio.current_time()
            with Live(view.render(), console=self._console, refresh_per_second=4) as live:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._watch, client, start)
                    tasks.start_soon(self._draw, live, view, client)
                    await self._play(tasks, client, view)
                    tasks.cancel_scope.cancel()
                await self._refresh(view, client)
                live.update(view.render())
            self._console.print()
            verdicts = await self._verdicts(client)
            self._console.print(verdict_table(verdicts))
            told = closing(verdicts, _program(), secure=options.secure, outage=options.outage)
            self._console.print(told, highlight=False)
            if self._options.keep:
                await self._leave_running(view)
            return verdicts

    def _start_cluster(self, stack: AsyncExitStack) -> dict[str, Any]:
        arguments = ["-m", "router.cli", "embedded", "--shards", "3", "--port", "0"]
        if self._security is not None:
            arguments += self._security.cluster_flags
        log = self._options.folder / "embedded.log"
        embedded = stack.enter_context(Program("the embedded cluster", arguments, log))
        return embedded.wait_ready(START_SECONDS)

    def _start_router(self, stack: AsyncExitStack, cluster: dict[str, Any]) -> dict[str, Any]:
        arguments = ["-m", "router.cli", "serve", "--configdb", cluster["configdb"]]
        arguments += ["--port", str(self._options.port), "--feed-port", "0"]
        arguments += ["--upstream", f"mongodb://{cluster['mongos']}"]
        if self._security is not None:
            arguments += self._security.router_flags
        log = self._options.folder / "router.log"
        serve = stack.enter_context(Program("the router", arguments, log))
        return serve.wait_ready(START_SECONDS)

    def _start_spark(self, address: str) -> Program:
        folder = self._options.folder
        arguments = ["-m", "spark_sink.cli", "run", f"{DATABASE}.{COLLECTION}"]
        arguments += ["--out", str(folder / "job"), "--trigger", "1 second"]
        environment = {"MERGEROUTER_URI": self._uri(address, SPARK)}
        return Program("the Spark job", arguments, folder / "spark.log", environment)

    def _uri(self, address: str, user: str) -> str:
        """Return a connection string; the user matters in a secured demo only."""
        if self._security is None:
            return f"mongodb://{address}"
        return self._security.uri(address, user)

    def _live_view(self, address: str, feed_port: int) -> LiveView:
        if self._security is None:
            return LiveView(f"'mongodb://{address}'", f"nc 127.0.0.1 {feed_port}")
        file = self._security.uri_file(address)
        return LiveView(f'"$(cat {file})"', f"feed: port {feed_port}, with TLS and a login")

    async def _play(self, tasks: TaskGroup, client: Client, view: LiveView) -> None:
        """Write all the time, change the cluster meanwhile, and let the readers catch up."""
        stop = False
        finished = anyio.Event()

        async def write() -> None:
            await Load(client, self._written, self._options.rate).run(lambda: stop)
            finished.set()

        tasks.start_soon(write)
        view.note = "writing: inserts, updates, deletes, cross-shard transactions"
        await anyio.sleep(self._options.seconds / 2)
        view.note = f"adding {LATE_SHARD} to the running cluster"
        await self._add_shard(client)
        view.note = f"{LATE_SHARD} added: a range of the collection has moved to it"
        await anyio.sleep(self._options.seconds / 4)
        if self._options.spark:
            view.note = "Spark reads a snapshot, and then the events after it"
            with anyio.move_on_after(SNAPSHOT_SECONDS):
                await self._until(lambda: self._committed.mark != "")
        if self._options.outage:
            await self._outage(client, view)
        await anyio.sleep(self._options.seconds / 4)
        if self._options.picture is not None:
            _save(view, self._options.picture)
        stop = True
        await finished.wait()
        view.note = "writing has ended; the readers catch up"
        with anyio.move_on_after(CATCH_UP_SECONDS) as catching_up:
            await self._until(lambda: len(self._seen.changes) >= len(self._written))
            if self._options.spark:
                await self._until(lambda: view.committed.total >= len(self._expected()))
        self._is_late = catching_up.cancelled_caught

    async def _watch(self, client: Client, start: Timestamp) -> None:
        """Record every change of the collection since ``start``, by a driver, until cancelled."""
        orders = client[DATABASE][COLLECTION]
        async with await orders.watch(start_at_operation_time=start) as stream:
            async for event in stream:
                self._seen.add(event["_id"]["_data"], Change.of_event(event))

    def _expected(self) -> list[Change]:
        """Return what Spark must deliver as changes: what follows the snapshot that it reads."""
        return self._seen.after(self._committed.mark)

    async def _add_shard(self, client: Client) -> None:
        started = await client.admin.command({"startShard": LATE_SHARD})
        await client.admin.command({"addShard": started["host"], "name": LATE_SHARD})
        await move_range(client, "v", LATE_SHARD)

    async def _outage(self, client: Client, view: LiveView) -> None:
        """Kill a shard, wait, and start it again: the readers wait, and miss nothing."""
        view.note = f"{KILLED_SHARD} is killed: readers wait, its events may come first"
        await client.admin.command({"switchMember": KILLED_SHARD, "to": "stop"})
        await anyio.sleep(OUTAGE_SECONDS)
        await client.admin.command({"switchMember": KILLED_SHARD, "to": "start"})
        view.note = f"{KILLED_SHARD} is back: the streams continue by themselves"
        await anyio.sleep(OUTAGE_SECONDS / 2)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._spark is not None and not self._spark.running:
                raise ProgramError(
                    "the Spark job ended early; its last output:\n" + self._spark.last_output()
                )
            await anyio.sleep(REFRESH_SECONDS)

    async def _draw(self, live: Live, view: LiveView, client: Client) -> None:
        while True:
            await self._refresh(view, client)
            live.update(view.render())
            await anyio.sleep(REFRESH_SECONDS)

    async def _refresh(self, view: LiveView, client: Client) -> None:
        now = anyio.current_time()
        view.written.set(len(self._written), now)
        view.delivered.set(len(self._seen.changes), now)
        view.committed.set(await anyio.to_thread.run_sync(self._committed.refresh), now)
        view.spark = self._spark_state()
        status = await client.admin.command("serverStatus")
        streams = status.get("mergerouter", {}).get("streams", [])
        # The watcher's stream, from start to end: Spark's come and go.
        namespace = view.stream.get("namespace")
        watched = [each for each in streams if each["namespace"] == namespace] or streams
        best = max(watched, key=lambda stream: stream["events"], default=view.stream)
        if best.get("events", 0) >= view.stream.get("events", 0):  # else the watcher has ended
            view.stream = best

    def _spark_state(self) -> str:
        if self._spark is None:
            return "not started (--no-spark)"
        if not self._spark.running:
            return "ended; see spark.log"
        if not self._committed.mark:
            seconds = anyio.current_time() - self._spark_started
            return f"{self._spark_step()}: {seconds:.0f} s of some 60"
        return f"after a snapshot of {self._committed.documents:,} documents"

    def _spark_step(self) -> str:
        """Return which step of Spark's start takes the time."""
        checkpoint = self._options.folder / "job" / "checkpoint"
        if not checkpoint.exists():
            return "step 1/3, Java starts"
        if not any((checkpoint / "commits").glob("[0-9]*")):
            return "step 2/3, planning"
        return "step 3/3, reading"

    async def _verdicts(self, client: Client) -> list[Verdict]:
        verdicts = [judge("driver, watch()", self._written, self._seen)]
        if self._options.spark:
            changes = self._committed.seen()
            verdicts.append(judge("Spark, changes", self._expected(), changes))
            orders = client[DATABASE][COLLECTION].find({}, {"version": 1})
            documents = {order["_id"]: order["version"] async for order in orders}
            rows = await anyio.to_thread.run_sync(self._committed.current)
            verdicts.append(judge_table("Spark, current", documents, rows))
        return [replace(verdict, late=self._is_late) for verdict in verdicts]

    async def _leave_running(self, view: LiveView) -> None:
        self._console.print(f"still running; try  mongosh {view.uri}  ({view.feed})")
        self._console.print("press Ctrl-C to stop")
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                return

    @staticmethod
    async def _now(client: Client) -> Timestamp:
        """Return a cluster time after all operations so far and before all later ones."""
        reply = await client.admin.command("ping")
        time: Timestamp = reply["$clusterTime"]["clusterTime"]
        return Timestamp(time.time, time.inc + 1)


def _program() -> str:
    """Return the path of the running program, relative to this folder if it is below it."""
    path = Path(sys.argv[0])
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def _save(view: LiveView, path: Path) -> None:
    """Write the current live view to an SVG file."""
    console = Console(record=True, width=84, file=StringIO())
    console.print(view.render())
    console.save_svg(str(path), title="make demo")
