"""One seed: a workload whose streams are read through mongos and through the router."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from operator import itemgetter
from random import Random
from typing import Any

import bson
import pymongo
from bson import Timestamp
from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tests.differential import backlog
from tests.differential.comparison import command_text, differ_by_shard, differences
from tests.differential.deliberate import is_deliberate
from tests.differential.plans import Plan, Planner, Token, is_invalidate, token_time
from tests.differential.reading import DeadlineError, Failure, Reader, Reading
from tests.differential.workload import THEMES, Client, Workload

LIVE_STREAMS = 4
PAST_STREAMS = 14
FRAGMENT_STREAMS = 6
_READ_SECONDS = 60.0
_SEED_SECONDS = 600.0
_LOCK_FAILED = 107
"""The error code of a note that does not get the global lock at once."""
_NOTE_ATTEMPTS = 200
_FRAGMENT = re.compile("0000(?:29|2B..)04$")
"""The end of a fragment's token, after that of its event."""


@dataclass(frozen=True)
class Servers:
    """The servers that seeds run on.

    Args:
        mongos: the port of the mongos.
        routers: the ports of the routers, whose upstream is that mongos, by their ways of sharing.
        members: connection strings of the shards' primaries by name, and of the config server's.
    """

    mongos: int
    routers: dict[str, int]
    members: dict[str, str]


@dataclass
class Outcome:
    """The result of a seed."""

    seed: int
    sharing: str
    theme: str
    seconds: float = 0.0
    streams: int = 0
    events: int = 0
    log: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


class Clients:
    """The driver clients that all seeds share."""

    def __init__(self, servers: Servers) -> None:
        self.mongos: Client = AsyncMongoClient(
            port=servers.mongos,
            unicode_decode_error_handler="replace",
            datetime_conversion="DATETIME_AUTO",
        )
        self.members: list[Client] = [
            AsyncMongoClient(uri, directConnection=True) for uri in servers.members.values()
        ]

    async def close(self) -> None:
        """Close all connections."""
        for client in (self.mongos, *self.members):
            await client.close()

    async def now(self) -> Timestamp:
        """Return the cluster time that the mongos reports."""
        time: Timestamp = (await self.mongos.admin.command("ping"))["$clusterTime"]["clusterTime"]
        return time

    async def settle(self) -> Timestamp:
        """Advance all members' oplogs beyond the cluster time, and return that time.

        So no stream waits for an idle member.
        """
        told = (await self.mongos.admin.command("ping"))["$clusterTime"]
        await asyncio.gather(*(self._pass(member, told) for member in self.members))
        time: Timestamp = told["clusterTime"]
        return time

    @staticmethod
    async def _pass(member: Client, told: dict[str, Any]) -> None:
        note = {"appendOplogNote": 1, "data": {"msg": "differential"}}
        async with member.start_session() as session:
            session.advance_cluster_time(told)
            concern = pymongo.WriteConcern("majority").document
            for _ in range(_NOTE_ATTEMPTS):
                try:
                    await member.admin.command({**note, "writeConcern": concern}, session=session)
                except OperationFailure as error:
                    if error.code != _LOCK_FAILED:
                        raise
                else:
                    return


def theme_of(seed: int) -> str:
    """Return the theme of a seed's workload."""
    return list(THEMES)[seed % len(THEMES)]


async def run_seed(
    servers: Servers, clients: Clients, seed: int, on_step: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Run a seed.

    Args:
        servers: the servers to run on.
        clients: their clients.
        seed: determines everything except times, UUIDs and the interleaving of members' clocks.
        on_step: called with a line for each step.
    """
    ways = list(servers.routers)
    sharing = ways[seed // len(THEMES) % len(ways)]
    run = _Run(servers, clients, Outcome(seed, sharing, theme_of(seed)), on_step)
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(_SEED_SECONDS):
            await run.run()
    except Exception as error:  # noqa: BLE001 - the other seeds go on
        run.outcome.differences.append(f"did not run to its end: {error!r}")
    finally:
        for database in run.databases:
            with suppress(PyMongoError):
                await clients.mongos.drop_database(database)
    run.outcome.seconds = round(time.perf_counter() - begun, 2)
    return run.outcome


async def run_all(
    servers: Servers,
    clients: Clients,
    seeds: Iterable[int],
    jobs: int,
    done: Callable[[Outcome], None],
    seconds: float = math.inf,
) -> list[Outcome]:
    """Run seeds, ``jobs`` of them at a time; call ``done`` with each outcome.

    None begins after ``seconds``.
    """
    waiting = iter(seeds)
    until = time.monotonic() + seconds
    outcomes: list[Outcome] = []

    async def work() -> None:
        while time.monotonic() < until and (seed := next(waiting, None)) is not None:
            outcome = await run_seed(servers, clients, seed)
            outcomes.append(outcome)
            done(outcome)

    async with asyncio.TaskGroup() as group:
        for _ in range(jobs):
            group.create_task(work())
    return outcomes


class _Run:
    def __init__(
        self, servers: Servers, clients: Clients, outcome: Outcome, on_step: Callable[[str], None]
    ) -> None:
        self._servers = servers
        self._clients = clients
        self.outcome = outcome
        self._on_step = on_step
        seed, self._theme = outcome.seed, outcome.theme
        self._chance = chance = Random(seed)
        names = [name for name in servers.members if name != "config"]
        self._workload = Workload(
            clients.mongos,
            names,
            Random(chance.random()),
            f"seed{seed}",
            self._theme,
            self._report_step,
        )
        self._plans_chance = Random(chance.random())
        self._steps = chance.randrange(15, 45)
        self.databases: Sequence[str] = self._workload.databases

    def _report_step(self, text: str) -> None:
        self.outcome.log.append(text)
        self._on_step(text)

    async def run(self) -> None:
        start = await self._clients.now()
        raw = self._theme == "raw"
        planner = Planner(self._plans_chance, self.databases, start, raw=raw)
        outcome = self.outcome
        self._report_step(f"seed {outcome.seed}: {outcome.theme}, sharing {outcome.sharing}")
        await self._workload.prepare()
        pair_of = partial(
            _Pair,
            self._servers,
            self._servers.routers[outcome.sharing],
            opened=await self._clients.now(),
        )
        coming: asyncio.Future[Timestamp] = asyncio.get_running_loop().create_future()
        live = [pair_of(planner.live(n)) for n in range(LIVE_STREAMS)]
        reading = [asyncio.ensure_future(pair.read(coming)) for pair in live]
        try:
            for pair in live:
                await pair.opened()
            self._report_step("workload")
            await self._workload.run(self._steps)
            begun = await self._clients.now()
            if self._theme == "backlog":
                database = self._clients.mongos[self.databases[1]]
                self._report_step("  backlog " + await backlog.write(database, self._chance))
        finally:
            end = await self._clients.settle()
            coming.set_result(end)
        references = [pair_of(plan) for plan in planner.reference()]
        if self._theme == "large":
            references.append(pair_of(planner.large()))
        await asyncio.gather(*reading, *(pair.read(coming) for pair in references))
        tokens, times = self._starts(references, start, end)
        plans = [planner.past(n, tokens, times) for n in range(PAST_STREAMS)]
        fragments = [token for token in tokens if _FRAGMENT.search(token["_data"])]
        past = [pair_of(plan) for plan in plans]
        await asyncio.gather(*(pair.read(coming) for pair in past))
        if fragments:
            plans = [planner.after_fragment(n, fragments) for n in range(FRAGMENT_STREAMS)]
            past += (inside := [pair_of(plan) for plan in plans])
            await asyncio.gather(*(pair.read(coming) for pair in inside))
        pairs = [*live, *references, *past]
        if self._theme == "backlog":
            # No invalidate ends the cluster's stream before the backlog.
            of_all = references[0].mongos.reading.all_tokens
            of_backlog = [token for token in of_all if token_time(token["_data"]) > begun]
            drawn = backlog.readers(self._chance, self.databases[1], of_backlog, begun)
            pairs += (draining := [pair_of(plan) for plan in drawn])
            await asyncio.gather(*(pair.read(coming) for pair in draining))
        ended = pairs
        while ended := [pair_of(plan) for pair in ended for plan in pair.next_incarnation]:
            await asyncio.gather(*(pair.read(coming) for pair in ended))
            pairs += ended
        for pair in pairs:
            self._judge(pair, end)

    def _starts(
        self, pairs: Sequence["_Pair"], start: Timestamp, end: Timestamp
    ) -> tuple[list[Token], list[Timestamp]]:
        """Return the tokens and times that streams may start from."""
        tokens = {
            bson.encode(token): token for pair in pairs for token in pair.mongos.reading.all_tokens
        }
        inside = [token for token in tokens.values() if token_time(token["_data"]) <= end]
        inside.sort(key=itemgetter("_data"))
        times = {token_time(token["_data"]) for token in inside}
        beside = {Timestamp(time.time, time.inc + 1) for time in times}
        return inside, sorted({start, end} | times | beside)

    def _judge(self, pair: "_Pair", end: Timestamp) -> None:
        outcome, plan = self.outcome, pair.plan
        outcome.streams += 1
        mongos, router = pair.mongos.reading, pair.router.reading
        outcome.events += len(mongos.events)
        line = command_text(plan)
        ended = str(mongos.failures[-1])[:120] if mongos.failures else ""
        self._report_step(f"  {line[:300]} -> {len(mongos.events)} events {ended}")
        renamed = self._workload.renamed
        readings = {"": router}
        if pair.joined is not None:
            readings["in legs: "] = pair.joined
        if pair.slow is not None:
            readings["a slow client: "] = pair.slow.reading
        if pair.failures:  # a stream that hangs is never a difference that is meant
            outcome.differences.append("\n    ".join([line, *pair.failures]))
            return
        found = []
        for name, reading in readings.items():
            legs = reading is pair.joined
            each = differences(plan, mongos, reading, end, pair.of_shards, renamed, legs=legs)
            if each and not is_deliberate(plan, mongos, reading, pair.of_shards):
                found += [f"{name}{text}" for text in each]
        if found and not (pair.skips or is_deliberate(plan, mongos, router, pair.of_shards)):
            outcome.differences.append("\n    ".join([line, *found]))


class _Pair:
    """A plan and its readings through mongos and through the router.

    Args:
        servers: the servers to read from.
        router: the router's port.
        plan: the stream to read.
        opened: a time before which a stream from now has no events.
    """

    def __init__(self, servers: Servers, router: int, plan: Plan, opened: Timestamp) -> None:
        self.plan = plan
        self.mongos = Reader(servers.mongos, plan, _READ_SECONDS)
        self.router = Reader(router, plan, _READ_SECONDS)
        self.slow = Reader(router, plan.slow(), _READ_SECONDS) if plan.after_end else None
        """A second client of the router, where both start after an invalidate."""
        self.joined: Reading | None = None
        self.failures: list[str] = []
        self.of_shards: list[Failure] = []
        """The errors of shards that are read alone; filled if mongos and the router differ."""
        self._ends_of_shards: set[str] = set()
        """The invalidates whose causes are the first events that a shard shows."""
        self._servers, self._port = servers, router
        self._opened = opened

    async def opened(self) -> None:
        """Wait until both streams are open."""
        await self.mongos.opened.wait()
        await self.router.opened.wait()

    @property
    def skips(self) -> bool:
        """Whether the router skips an invalidate that mongos does not, because mongos counts an
        event before it that the shard does not show (docs/protocol.md#invalidates).
        """
        theirs, ours = self.mongos.reading, self.router.reading
        last = theirs.promised
        before = sorted(pair for pair in theirs.pairs if pair[0] != last)
        if self._has_fewer_ends:
            return before == sorted(pair for pair in ours.pairs if pair[0] != last)
        return (
            self._goes_further
            and last in self._ends_of_shards
            and before == sorted(pair for pair in ours.pairs if pair[0] <= last)
            and self.slow is not None
            and self.slow.reading.promised == ours.promised
        )

    @property
    def _has_fewer_ends(self) -> bool:
        """Whether both end with one invalidate, which the router delivers of fewer shards."""
        theirs, ours = self.mongos.reading, self.router.reading
        last = theirs.promised
        both_end = theirs.invalidated and ours.invalidated and ours.promised == last
        return (
            self.plan.after_end
            and both_end
            and 0 < ours.tokens.count(last) < theirs.tokens.count(last)
        )

    @property
    def _goes_further(self) -> bool:
        theirs, ours = self.mongos.reading, self.router.reading
        return self.plan.after_end and theirs.invalidated and theirs.promised < ours.promised

    @property
    def next_incarnation(self) -> list[Plan]:
        """The plan of the stream that goes on after the invalidate at its end, if there is one."""
        reading = self.mongos.reading
        if not reading.invalidated or not is_invalidate(reading.promised):
            return []
        return [self.plan.after_invalidate(reading.promises[-1][1])]

    async def read(self, end: "asyncio.Future[Timestamp]") -> None:
        """Read both to ``end``."""
        readers = {"mongos": self.mongos, "router": self.router}
        if self.slow is not None:
            readers["router, slowly"] = self.slow
        results = await asyncio.gather(
            *(reader.read(end) for reader in readers.values()), return_exceptions=True
        )
        for name, result in zip(readers, results, strict=True):
            if isinstance(result, DeadlineError | OSError | EOFError | BSONError):
                self.failures.append(f"through {name}: {type(result).__name__}: {result}")
            elif isinstance(result, BaseException):
                raise result
        if self.plan.legs and not self.failures and not self.router.reading.failures:
            await self._read_in_legs(end)
        theirs, ours = self.mongos.reading, self.router.reading
        only_here = bool(ours.failures) and not theirs.failures
        if only_here or self._goes_further or differ_by_shard(self.plan, theirs, ours):
            await self._read_each_shard(end)

    async def _read_each_shard(self, end: "asyncio.Future[Timestamp]") -> None:
        """Read each shard's stream alone through mongos to find the errors that may end it.

        Each is read with and without its stages: the router's shards do not run the stages that
        follow a lookup, and so may fail at another event.
        """
        whole = self.plan.from_time(self._opened)
        bare = replace(
            whole, command={**whole.command, "pipeline": [{"$changeStream": whole.stage}]}
        )
        shards = [shard for shard in self._servers.members if shard != "config"]
        for plan, shard in product((whole, bare), shards):
            alone = {**plan.command, "$_passthroughToShard": {"shard": shard}}
            with suppress(DeadlineError):
                reader = Reader(self._servers.mongos, replace(plan, command=alone), _READ_SECONDS)
                read = await reader.read(end)
                self.of_shards += read.failures
                times = {token_time(token) for token in (*read.tokens, read.promised) if token}
                if plan is whole and read.invalidated and len(times) == 1:
                    self._ends_of_shards.add(read.promised)

    async def _read_in_legs(self, end: "asyncio.Future[Timestamp]") -> None:
        """Read the stream alternately through the router and through mongos."""
        joined, plan = Reading(), self.plan
        for leg in range(4 * self.plan.legs):
            port = self._servers.mongos if leg % 2 else self._port
            last = leg + 1 == 4 * self.plan.legs
            reader = Reader(port, plan, _READ_SECONDS)
            try:
                part = await reader.read(end, most=1 << 30 if last else self.plan.legs)
            except (DeadlineError, OSError, EOFError) as error:
                self.failures.append(f"in leg {leg}: {error}")
                return
            joined.promises += [(len(joined.events) + n, token) for n, token in part.promises]
            joined.events += part.events
            joined.tokens += part.tokens
            joined.failures += part.failures
            joined.wrong += part.wrong
            joined.opening = joined.opening or part.opening
            joined.invalidated, joined.killed = part.invalidated, part.killed
            if is_invalidate(part.promised):
                joined.invalidated, joined.killed = True, None
            if joined.invalidated or part.failures:
                break
            plan = plan.resumed(part.promises[-1][1])
        self.joined = joined
