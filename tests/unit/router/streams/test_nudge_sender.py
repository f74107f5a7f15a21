"""Nudges: by note or by read, how often, and only when necessary."""

import asyncio
from dataclasses import replace
from functools import partial
from itertools import count

from bson import Timestamp

from router.catalog.cluster import Cluster
from router.streams.member_load import MemberLoads
from router.streams.nudge_sender import NudgeResult, NudgeSender
from shard_client.replica_set.probed_replica_set import ProbedReplicaSet
from tests.doubles.scripted_cluster import LIMITS, OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until

NUDGING = replace(LIMITS, nudge=True, nudge_delay=0.001)


class Nudged:
    """A nudge sender on the scripted cluster whose attempts can be awaited."""

    def __init__(self, cluster: ScriptedCluster, **changes: object) -> None:
        limits = replace(NUDGING, **changes)  # type: ignore[arg-type]
        self.cluster = Cluster(cluster.config.host, limits, replica_set=ProbedReplicaSet)
        cluster.clusters.append(self.cluster)
        self.loads = MemberLoads()
        self.nudge_sender = NudgeSender(self.cluster, limits, self.loads)
        self.host = cluster.shards["s1"].host
        self.done = 0
        self.begun: list[float] = []
        self.results: list[NudgeResult] = []

    def ask(self, past: Timestamp) -> None:
        self.nudge_sender.nudge(
            "s1", self.host, wanted=lambda: past, begun=self.begun.append, done=self._count
        )

    async def once(self, past: Timestamp) -> None:
        wanted = self.done + 1
        self.ask(past)
        await until(lambda: self.done >= wanted)

    def _count(self, result: NudgeResult) -> None:
        self.done += 1
        self.results.append(result)

    @property
    def made(self) -> int:
        return self.loads.of("s1").nudges


async def test_a_note_advances_the_member_beyond_the_requested_time(cluster: ScriptedCluster):
    nudged, member = Nudged(cluster), cluster.shards["s1"]
    await nudged.cluster.shards()
    await nudged.once(Timestamp(200, 5))
    assert member.commands["appendOplogNote"] == 1
    assert member.commands["find"] == 0
    await nudged.once(Timestamp(50, 1))
    assert member.commands["appendOplogNote"] == 2, (
        "a member that is already past the time writes no note"
    )
    assert nudged.results == [NudgeResult.ACKNOWLEDGED, NudgeResult.THERE]
    load = nudged.loads.of("s1")
    assert (load.nudges, load.notes, load.note_bytes) == (2, 1, 101)
    await nudged.nudge_sender.close()


async def test_a_member_that_refuses_notes_is_read_from_at_once_and_later(
    cluster: ScriptedCluster,
):
    nudged, member = Nudged(cluster), cluster.shards["s1"]
    member.notes = False
    await nudged.cluster.shards()
    await nudged.once(Timestamp(98, 1))
    assert (member.commands["appendOplogNote"], member.commands["find"]) == (1, 1)
    await nudged.once(Timestamp(98, 2))
    assert (member.commands["appendOplogNote"], member.commands["find"]) == (1, 2)
    assert nudged.results == [NudgeResult.READ] * 2, "a read may not show the requested time"
    await nudged.nudge_sender.close()


async def test_concurrent_requests_share_one_nudge(cluster: ScriptedCluster):
    nudged, member = Nudged(cluster), cluster.shards["s1"]
    for second in range(150, 250):
        nudged.ask(Timestamp(second, 1))
    await until(lambda: nudged.done == 100)
    assert member.commands["appendOplogNote"] <= 2
    await nudged.nudge_sender.close()


async def test_bursts_are_not_delayed_and_sustained_load_is(cluster: ScriptedCluster):
    free = Nudged(cluster, nudges_per_second=0.01, nudge_burst=5.0)
    for number in range(5):
        await free.once(Timestamp(200 + number, 1))
    await free.nudge_sender.close()
    bound = Nudged(cluster, nudges_per_second=20.0, nudge_burst=1.0)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(6):
        await bound.once(Timestamp(400 + number, 1))
    # The first nudge takes the burst's token and each other one a token of a later tick.
    assert loop.time() - begun > 4 / 20
    await bound.nudge_sender.close()


async def test_notes_alone_need_three_days_to_fill_an_oplog(cluster: ScriptedCluster):
    nudged, member = Nudged(cluster, nudge_burst=1.0), cluster.shards["s1"]
    per_second = 10.0
    member.oplog_size = round(per_second * 3 * 24 * 3600 * 101)
    await nudged.once(Timestamp(200, 1))
    await until(lambda: member.commands["collStats"])
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(4):
        await nudged.once(Timestamp(300 + number, 1))
    assert loop.time() - begun > 3 / per_second
    assert member.commands["collStats"] == 1, "requested once for each connection"
    await nudged.nudge_sender.close()


async def test_a_nudge_that_is_no_longer_needed_is_skipped(
    cluster: ScriptedCluster,
):
    nudged, member = Nudged(cluster, nudge_burst=1.0), cluster.shards["s1"]
    wanted: list[Timestamp | None] = [Timestamp(200, 1), None, None]
    for _ in range(3):
        ended = nudged.done
        nudged.nudge_sender.nudge(
            "s1", nudged.host, wanted=partial(wanted.pop, 0), begun=nudged.begun.append,
            done=nudged._count,
        )  # fmt: skip
        await until(lambda before=ended: nudged.done > before)  # type: ignore[misc]
    assert nudged.results == [NudgeResult.ACKNOWLEDGED, NudgeResult.UNWANTED, NudgeResult.UNWANTED]
    assert len(nudged.begun) == member.commands["appendOplogNote"] == 1
    await nudged.nudge_sender.close()


async def test_a_delayed_nudge_uses_the_latest_requested_time(cluster: ScriptedCluster):
    """Otherwise each note of a busy stream would cover one event only."""
    nudged, member = Nudged(cluster, nudge_burst=1.0), cluster.shards["s1"]
    await nudged.once(Timestamp(200, 1))
    newest = Timestamp(300, 1)
    nudged.nudge_sender.nudge(
        "s1", nudged.host, wanted=lambda: newest, begun=nudged.begun.append, done=nudged._count
    )
    newest = Timestamp(400, 1)
    await until(lambda: nudged.done == 2)
    assert member.past[-1] == Timestamp(400, 2)
    await nudged.nudge_sender.close()


async def test_zero_nudges_a_second_disables_nudges(cluster: ScriptedCluster):
    registry = cluster.registry(NUDGING, nudges_per_second=0.0)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    assert (await cursor.next_batch(None, 0.1)).events == []
    assert all(member.commands["appendOplogNote"] == 0 for member in cluster.members)
    cluster.noop(106)
    assert await read_until(cursor, 1) == [1]


async def test_a_note_without_a_majority_is_not_acknowledged(cluster: ScriptedCluster):
    nudged, member = Nudged(cluster), cluster.shards["s1"]
    member.unreplicated = True
    await nudged.once(Timestamp(200, 1))
    assert nudged.results == [NudgeResult.FAILED]
    member.unreplicated = False
    await nudged.once(Timestamp(300, 1))
    assert nudged.results[-1] is NudgeResult.ACKNOWLEDGED
    await nudged.nudge_sender.close()


async def test_a_returning_shard_is_nudged_at_its_new_address(cluster: ScriptedCluster):
    nudged, old = Nudged(cluster), cluster.shards["s1"]
    await nudged.cluster.shards()
    await nudged.once(Timestamp(200, 1))
    moved = await ScriptedMember("rs9").start()
    cluster.extra.append(moved)
    cluster.config.documents["shards"][1]["host"] = moved.host
    await nudged.cluster.shards()
    await nudged.once(Timestamp(300, 1))
    assert (old.commands["appendOplogNote"], moved.commands["appendOplogNote"]) == (1, 1)
    await nudged.nudge_sender.close()


async def test_the_duration_of_nudges_is_measured(cluster: ScriptedCluster):
    nudged = Nudged(cluster, nudges_per_second=1000.0)
    cluster.shards["s1"].slow["appendOplogNote"] = 0.03
    loop = asyncio.get_running_loop()
    longest = 0.0
    for number in range(10):
        asked = loop.time()
        await nudged.once(Timestamp(200 + number, 1))
        longest = max(longest, loop.time() - asked)
    assert nudged.begun[0] < 0.01, "a guess before the first nudge"
    assert 0.01 < nudged.begun[-1] < longest
    await nudged.nudge_sender.close()


async def test_a_cut_idle_connection_does_not_fail_a_nudge(cluster: ScriptedCluster):
    nudged, member = Nudged(cluster), cluster.shards["s1"]
    await nudged.once(Timestamp(200, 1))
    member.cut()
    await nudged.once(Timestamp(201, 1))
    assert member.entries[-1][0] > Timestamp(201, 1) or member.commands["appendOplogNote"] >= 2
    await nudged.nudge_sender.close()


async def test_a_failing_member_is_not_nudged_for_a_while(cluster: ScriptedCluster):
    nudged, member = Nudged(cluster), cluster.shards["s1"]
    await nudged.once(Timestamp(200, 1))
    member.fail("appendOplogNote", 91)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await nudged.once(Timestamp(201, 1))
    assert nudged.results[-1] is NudgeResult.FAILED
    await nudged.once(Timestamp(202, 1))
    assert nudged.results[-1] is NudgeResult.ACKNOWLEDGED
    assert loop.time() - begun > 0.125, "the shortest pause after a first failure"
    await nudged.nudge_sender.close()


async def test_nudging_can_be_turned_off(cluster: ScriptedCluster):
    registry = cluster.registry(NUDGING, nudge=False)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    batch = await cursor.next_batch(None, 0.1)
    assert batch.events == []
    assert registry.nudges == {}
    assert all(member.commands["appendOplogNote"] == 0 for member in cluster.members)
    cluster.noop(106)
    assert await read_until(cursor, 1) == [1]


async def test_members_that_advance_by_themselves_are_not_nudged(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(NUDGING, nudge_delay=PATIENCE)
    cursor, _ = await registry.open(stream(), OWNER)
    for second in range(110, 116, 2):
        cluster.noop(second)
        cluster.shards["s0"].insert(second - 1, second)
        cluster.shards["s0"].entries.sort(key=lambda entry: entry[0])
        assert await read_until(cursor, 1) == [second]
    assert sum(registry.nudges.values()) == 0


async def test_an_event_after_a_quiet_time_is_delivered_as_quickly(cluster: ScriptedCluster):
    """Quiet or not, an event takes one nudge a member; the test counts requests, not time."""
    registry = cluster.registry(NUDGING, await_quiet=30.0, probe_worth=0.002, linger=60.0)
    cursor, _ = await registry.open(stream(), OWNER)
    await until(lambda: all(member.commands["getMore"] for member in cluster.members))
    for number in range(3):
        for member in cluster.members:
            member.commands.clear()
        await cursor.next_batch(None, 0.2)
        quiet = sum(member.commands["getMore"] for member in cluster.members)
        assert quiet <= 8, "a quiet stream sends few requests"
        cluster.shards["s0"].insert(1000 * (number + 1), number)
        async with asyncio.timeout(PATIENCE):
            assert await read_until(cursor, 1) == [number]
        notes = [member.commands["appendOplogNote"] for member in cluster.members]
        assert notes == [1, 0, 1, 1]
    assert all(member.commands["killCursors"] == 0 for member in cluster.members)


async def test_a_removed_shard_is_nudged_although_another_one_joins(cluster: ScriptedCluster):
    """Streams read a removed shard to its end, which it must pass to let their other events go."""
    nudged = Nudged(cluster)
    assert nudged.cluster.replica_set("s1") is None, "it is not in the shard list"
    nudged.ask(Timestamp(200, 5))
    nudged.nudge_sender.next_tick("s2", cluster.shards["s2"].host, 0.0)
    await until(lambda: nudged.done == 1)
    assert nudged.results == [NudgeResult.ACKNOWLEDGED]
    await nudged.nudge_sender.close()


async def test_a_removed_shard_is_forgotten_after_its_nudges(cluster: ScriptedCluster):
    nudged = Nudged(cluster)
    await nudged.once(Timestamp(200, 5))
    shards = cluster.config.documents["shards"]
    cluster.config.documents["shards"] = [each for each in shards if each["_id"] != "s1"]
    await nudged.cluster.shards()
    assert nudged.cluster.replica_set("s1") is None
    writers = cluster.shards["s1"].writers
    connected, names = len(writers), (f"joins{number}" for number in count())

    def gone() -> bool:
        nudged.nudge_sender.next_tick(next(names), nudged.host, 0.0)
        return len(writers) < connected

    await until(gone)
    await nudged.nudge_sender.close()
