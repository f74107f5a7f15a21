"""No-op writes: by note or by read, how often, and only when necessary."""

import asyncio
from dataclasses import replace

import pytest
from bson import Timestamp
from structlog.testing import capture_logs

from router.catalog.cluster import Cluster
from router.counters.loads import StreamLoads
from router.stream.remotes import noop_writer
from router.stream.remotes.noop_writer import LEAST_SECONDS, NOOP_BYTES, NoOpWriter
from shard_client.errors import ErrorCode
from tests.doubles.probed_replica_set import ProbedReplicaSet
from tests.doubles.scripted_cluster import LIMITS, OWNER, ScriptedCluster, read_until, stream
from tests.harness.until import until

NOOPS = replace(LIMITS, noop_writes=True, noop_delay=0.001)


class Requests:
    """A no-op write sender on the scripted cluster whose attempts can be awaited."""

    def __init__(self, cluster: ScriptedCluster, **changes: object) -> None:
        limits = replace(NOOPS, **changes)  # type: ignore[arg-type]
        self.cluster = Cluster(cluster.config.host, limits, replica_set=ProbedReplicaSet)
        cluster.clusters.append(self.cluster)
        self.loads = StreamLoads()
        self.noop_writer = NoOpWriter(self.cluster, limits, self.loads)
        cluster.noop_writers.append(self.noop_writer)
        self.host = cluster.shards["s1"].host
        self.done = 0
        self.sent: list[int] = []
        self.wanted: list[Timestamp | Exception | None] = []
        self.withdrawn: list[int] = []
        self.results: list[bool] = []

    def ask(self, past: Timestamp | Exception | None) -> None:
        self.wanted.append(past)
        self.noop_writer.target_at("s1", self.host).request(self, len(self.wanted) - 1)

    def confirm_noop(self, number: int) -> Timestamp | None:
        wanted = self.wanted[number]
        if isinstance(wanted, Exception):
            raise wanted
        if wanted is None:
            self.done += 1
            self.withdrawn.append(number)
        return wanted

    def noop_sent(self, number: int, past: Timestamp, takes: float) -> None:
        self.sent.append(number)

    def noop_done(self, number: int, *, moved: bool) -> None:
        self.done += 1
        self.results.append(moved)

    async def once(self, past: Timestamp | Exception | None) -> None:
        wanted = self.done + 1
        self.ask(past)
        await until(lambda: self.done >= wanted)

    @property
    def made(self) -> int:
        return self.loads.of("s1").noop_writes


async def test_a_noop_advances_the_member_beyond_the_requested_time(cluster: ScriptedCluster):
    requests, member = Requests(cluster), cluster.shards["s1"]
    await requests.cluster.shards()
    await requests.once(Timestamp(200, 5))
    assert member.commands["appendOplogNote"] == 1
    assert member.commands["find"] == 0
    await requests.once(Timestamp(50, 1))
    assert member.commands["appendOplogNote"] == 2, (
        "a member that is already past the time writes no note"
    )
    assert requests.results == [True, True]
    load = requests.loads.of("s1")
    assert (load.noop_commands, load.noop_writes, load.noop_write_bytes) == (2, 1, 101)


async def test_a_member_that_refuses_noop_writes_is_read_from_and_asked_for_them_later(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, member = Requests(cluster), cluster.shards["s1"]
    member.notes = False
    await requests.cluster.shards()
    await requests.once(Timestamp(98, 1))
    assert (member.commands["appendOplogNote"], member.commands["find"]) == (1, 1)
    member.notes = True
    await requests.once(Timestamp(98, 2))
    assert (member.commands["appendOplogNote"], member.commands["find"]) == (1, 2), "not at once"
    monkeypatch.setattr(noop_writer, "PAUSE_AFTER_REFUSAL", 0.0)
    member.notes, requests.noop_writer = False, NoOpWriter(requests.cluster, NOOPS, requests.loads)
    cluster.noop_writers.append(requests.noop_writer)
    await requests.once(Timestamp(98, 3))
    member.notes = True  # the right has been granted
    await requests.once(Timestamp(200, 1))
    # A read may not show the requested time.
    assert requests.results == [False, False, False, True]


async def test_concurrent_requests_share_one_noop_write(cluster: ScriptedCluster):
    requests, member = Requests(cluster), cluster.shards["s1"]
    for second in range(150, 250):
        requests.ask(Timestamp(second, 1))
    await until(lambda: requests.done == 100)
    assert member.commands["appendOplogNote"] <= 2


@pytest.mark.parametrize("share", [1.0, 0.5])
async def test_noop_writes_take_three_days_to_fill_an_oplog(cluster: ScriptedCluster, share: float):
    requests = Requests(cluster, noop_burst=1.0, noop_share=share)
    member, per_second = cluster.shards["s1"], 10.0
    member.oplog_size = round(per_second * 3 * 24 * 3600 * 101 / share)
    await requests.once(Timestamp(200, 1))
    await until(lambda: member.commands["collStats"])
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(6):
        await requests.once(Timestamp(300 + number, 1))
    # One token may have come since, and the next tick may be near.
    assert loop.time() - begun > 4 / per_second
    assert member.commands["collStats"] == 1, "requested once for each primary"


async def test_the_size_of_the_oplog_is_asked_for_until_the_primary_answers(
    cluster: ScriptedCluster,
):
    """Otherwise one error of the network would end the bound of the oplog for good."""
    requests = Requests(cluster)
    member = cluster.shards["s1"]
    budget = requests.noop_writer.target_at("s1", requests.host).budget
    member.oplog_size = round(LEAST_SECONDS * NOOP_BYTES)
    member.fail("collStats", ErrorCode.NotWritablePrimary)
    for second in range(200, 203):
        await requests.once(Timestamp(second, 1))
    await until(lambda: budget.per_second == pytest.approx(1.0))
    assert member.commands["collStats"] == 2


async def test_a_noop_write_that_is_no_longer_needed_is_skipped(cluster: ScriptedCluster):
    requests, member = Requests(cluster, noop_burst=1.0), cluster.shards["s1"]
    for past in (Timestamp(200, 1), None, None):
        await requests.once(past)
    assert (requests.withdrawn, requests.results) == ([1, 2], [True])
    assert len(requests.sent) == member.commands["appendOplogNote"] == 1


async def test_a_withdrawn_request_gets_no_result_of_a_write_for_others(cluster: ScriptedCluster):
    """It may once have wanted a later time, which the write for the others does not reach."""
    requests = Requests(cluster)
    requests.ask(None)
    await requests.once(Timestamp(200, 1))
    await until(lambda: requests.results)
    assert (requests.withdrawn, requests.sent, requests.results) == ([0], [1], [True])


async def test_a_delayed_noop_write_uses_the_latest_requested_time(cluster: ScriptedCluster):
    """Otherwise each note of a busy stream would cover one event only."""
    requests, member = Requests(cluster, noop_burst=1.0), cluster.shards["s1"]
    await requests.once(Timestamp(200, 1))
    requests.ask(Timestamp(300, 1))
    requests.wanted[-1] = Timestamp(400, 1)
    await until(lambda: requests.done == 2)
    assert member.noted_times[-1] == Timestamp(400, 2)


async def test_zero_noop_writes_a_second_disables_noop_writes(cluster: ScriptedCluster):
    registry = cluster.registry(NOOPS, noops_per_second=0.0)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    assert (await cursor.next_batch(None, 0.1)).events == []
    assert all(member.commands["appendOplogNote"] == 0 for member in cluster.members)
    cluster.noop(106)
    assert await read_until(cursor, 1) == [1]


async def test_a_noop_without_a_majority_is_not_acknowledged(cluster: ScriptedCluster):
    requests, member = Requests(cluster), cluster.shards["s1"]
    member.unreplicated = True
    await requests.once(Timestamp(200, 1))
    assert requests.results == [False], "a repetition would find the time reached already"
    assert member.commands["appendOplogNote"] == 1
    member.unreplicated = False
    await requests.once(Timestamp(300, 1))
    assert requests.results[-1]


@pytest.mark.parametrize(
    ("code", "sent"), [(ErrorCode.WriteConflict, 1), (ErrorCode.NotWritablePrimary, 2)]
)
async def test_a_noop_write_is_repeated_at_once_where_another_primary_may_take_it(
    cluster: ScriptedCluster, code: ErrorCode, sent: int
):
    requests, member = Requests(cluster), cluster.shards["s1"]
    member.fail("appendOplogNote", code)
    await requests.once(Timestamp(200, 1))
    assert member.commands["appendOplogNote"] == sent
    assert requests.results == [sent == 2]


async def test_a_cut_idle_connection_does_not_fail_a_noop_write(cluster: ScriptedCluster):
    requests, member = Requests(cluster), cluster.shards["s1"]
    await requests.once(Timestamp(200, 1))
    member.cut()
    await requests.once(Timestamp(201, 1))
    assert requests.results == [True, True]


async def test_an_unexpected_exception_is_logged_and_the_next_noop_is_written(
    cluster: ScriptedCluster,
):
    requests = Requests(cluster)
    with capture_logs() as logged:
        requests.ask(ValueError("planted"))
        await requests.once(Timestamp(200, 1))
        await requests.once(Timestamp(201, 1))
    assert requests.results == [False, False, True], "each request has a result"
    assert [line["event"] for line in logged if line["log_level"] == "error"]


async def test_a_removed_shard_gets_a_noop_write(cluster: ScriptedCluster):
    """Streams read a removed shard to its end, which it must pass to let their other events go."""
    requests = Requests(cluster)
    assert "s1" not in requests.cluster.known_shards
    await requests.once(Timestamp(200, 5))
    assert requests.results == [True]
