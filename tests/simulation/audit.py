"""Checks after a run: clients' events against the shards' oplogs, and leaks."""

import asyncio
from random import Random
from typing import Any

from shard_client.errors import RESUMABLE_LABEL, CommandError, NetworkError
from shard_client.remote_cursor.cursor_reaper import KILL_TASK
from shard_client.wire.connection_pool import PoolLimits
from tests.simulation.driver import DriverCursor, ask
from tests.simulation.feed_client import FeedClient
from tests.simulation.loop import SimulatedLoop
from tests.simulation.processes import RouterProcess
from tests.simulation.segments import (
    Event,
    Segment,
    end_problems,
    key_of,
    segment_problems,
    start_problems,
)
from tests.simulation.trace import Trace
from tests.simulation.truth import History, end_after, tokens_of, whole_history
from tests.simulation.watcher import Watcher
from tests.simulation.workload import Workload

_TIME_TO_RESUME = 30.0
_TIME_FOR_THE_FEED = 60.0
_TIME_TO_FORGET = 9.0
"""Seconds, longer than the timeout of idle cursors."""
_TIME_TO_ASK = 3
"""Seconds, longer than the router takes to ask for the servers' versions, as it does at times."""
_IDLE_CONNECTIONS = PoolLimits().most_idle
_RESUMED = 2
"""The number of tokens of each client to resume from."""
_TASKS_OF_AN_IDLE_ROUTER = 4
"""The tasks of the router itself and of its freed memory, the asking connection and its command."""


class Audit:
    """All checks of one run; adds problems to the trace."""

    def __init__(
        self,
        loop: SimulatedLoop,
        trace: Trace,
        chance: Random,
        workload: Workload,
        router_process: RouterProcess,
        end: str,
        *,
        calm: bool,
    ) -> None:
        self.events = 0
        self._loop = loop
        self._trace = trace
        self._chance = chance
        self._workload = workload
        self._router = router_process
        self._end = end
        self._calm = calm

    async def check(self, watchers: list[Watcher]) -> None:
        """Run all checks."""
        shards = list(self._workload.shards_ever.values())
        present = self._workload.shards_now
        left = [shard for shard in shards if shard not in present]
        for watcher in watchers:
            history = await whole_history(shards, watcher.watch)
            self.events += sum(len(segment.events) for segment in watcher.segments)
            for number, segment in enumerate(watcher.segments):
                last = segment is watcher.segments[-1]
                for problem in segment_problems(segment, history.events, last=last):
                    who = f"{watcher.name} ({watcher.watch}), cursor {number}"
                    self._trace.problem(f"{who}: {problem}")
                # A removed shard may have ended a stream that nobody could read any more.
                for problem in [] if left else await self._end_problems(watcher, segment, history):
                    self._trace.problem(f"{watcher.name} ({watcher.watch}) {problem}")
                for problem in start_problems(segment, shards):
                    self._trace.problem(f"{watcher.name} {problem}")
            # Removed shards may have taken their events with them.
            rest = await whole_history(present, watcher.watch) if left else history
            gone = await tokens_of(left, watcher.watch)
            if gone:
                gone -= await tokens_of(present, watcher.watch)
            tokens = [token for token in watcher.seen if token["_data"] not in gone]
            for token in self._chance.sample(tokens, min(_RESUMED, len(tokens))):
                await self._resume(watcher, token, history.events, rest.events)
        await self._check_leaks()

    async def _end_problems(
        self, watcher: Watcher, segment: Segment, history: History
    ) -> list[str]:
        """Check where a cursor has ended, by the rule for its start."""
        if segment.start in history.ends:
            if watcher.watch.pipeline:
                return []  # what a shard's cursor sees depends on how its filter is evaluated
            shards = self._workload.shards_ever.values()
            end = await end_after(shards, watcher.watch, segment.start)
        else:
            end = next((each for each in history.ends if each > segment.start), "")
        return list(end_problems(segment, end))

    async def check_feed(self, client: FeedClient, reading: asyncio.Task[None]) -> None:
        """Wait until the feed client has all events, check them, and stop it."""
        history = (await whole_history(self._workload.shards_ever.values(), client.watch)).events
        last = key_of(history[-1]) if history else ""
        try:
            async with asyncio.timeout(_TIME_FOR_THE_FEED):
                while client.key < last:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self._trace.problem(f"the feed ({client.watch}) came to {client.key}, not to {last}")
        reading.cancel()
        await asyncio.wait({reading})
        if client.segments:
            client.segments[-1].end = client.key
        for number, segment in enumerate(client.segments):
            final = number == len(client.segments) - 1
            for problem in segment_problems(segment, history, last=final):
                self._trace.problem(f"feed ({client.watch}), connection {number}: {problem}")

    async def _resume(
        self,
        watcher: Watcher,
        token: dict[str, Any],
        history: list[Event],
        present: list[Event],
        *,
        again: bool = False,
    ) -> None:
        """Resume from a token and compare the events with the rest of the history.

        As drivers do, resume ``again`` after a resumable error: a removed shard may be down.
        """
        watch = watcher.watch
        segment = Segment(token["_data"])
        stage = {**watch.stage, "startAfter": token}
        cursor = DriverCursor(self._router.address, watch.database, watch.target, b"r" * 16)
        try:
            async with asyncio.timeout(_TIME_TO_RESUME) as without_events:
                batch = await cursor.open(stage, list(watch.pipeline), None)
                while True:
                    if batch.events:
                        without_events.reschedule(self._loop.time() + _TIME_TO_RESUME)
                    segment.events += batch.events
                    segment.end = batch.pbrt["_data"]
                    if not batch.cursor_id or segment.end >= self._end:
                        break
                    batch = await cursor.more(None, 300)
                await cursor.close()
        except (CommandError, NetworkError, TimeoutError) as error:
            if RESUMABLE_LABEL in getattr(error, "labels", ()) and not again:
                await self._resume(watcher, token, history, present, again=True)
            else:
                self._trace.problem(f"{watcher.name}: resuming from {token} failed: {error!r}")
            return
        finally:
            cursor.vanish()
        for problem in segment_problems(segment, history, present=present):
            self._trace.problem(f"{watcher.name} ({watch}) resumed at {token}: {problem}")

    def _tasks_and_links(self) -> tuple[list[str], list[object]]:
        """Return the router's tasks and connections if there are more than when it is idle."""
        router = self._router.name
        # A member that has left the cluster may have kept cursors; attempts to kill them go on.
        names = (task.get_name() for task in self._loop.tasks_of(router))
        tasks = [name for name in names if name != KILL_TASK]
        links = [each for each in self._loop.network.links_of(router) if each.client == router]
        # Each replica set keeps a few idle connections and the one for no-op writes; the mongos
        # keeps a few of those of lookups.
        kept = (_IDLE_CONNECTIONS + 1) * (1 + len(self._workload.shards_ever)) + _IDLE_CONNECTIONS
        return (
            tasks if len(tasks) > _TASKS_OF_AN_IDLE_ROUTER else [],
            [*links] if len(links) > kept else [],
        )

    async def _check_leaks(self) -> None:
        """Check that nothing of the clients is left in the router and on the shards."""
        await asyncio.sleep(_TIME_TO_FORGET)
        trace = self._trace
        status = await ask(self._router.address, {"serverStatus": 1})
        if left := status["metrics"]["cursor"]["open"]["total"]:
            trace.problem(f"{left} merged cursors are left in the router")
        tasks, links = self._tasks_and_links()
        for _ in range(_TIME_TO_ASK):
            if tasks or links:
                await asyncio.sleep(1.0)
                tasks, links = self._tasks_and_links()
        if tasks:
            trace.problem(f"tasks are left in the router: {tasks}")
        if links:
            trace.problem(f"connections are left in the router: {links}")
        now = self._loop.time()
        for shard in self._workload.shards_ever.values():
            for entry in shard.cursors._entries.values():
                # A cursor may be lost with its connection, but not if it was read recently.
                if self._calm or now - entry.used_at < _TIME_TO_FORGET - 1.0:
                    trace.problem(f"a cursor is left on {shard.name}")
