"""Finding members: by sending hello to all, and through the driver's monitoring."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest
from pymongo.errors import PyMongoError
from structlog.testing import capture_logs

from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.replica_set.motor_replica_set import NO_PRIMARY, MotorReplicaSet
from shard_client.replica_set.replica_set import (
    HEARTBEAT,
    PRIMARY,
    Member,
    NoMemberError,
    ReadPreference,
    ReplicaSet,
    fresh_enough,
    parse_hosts,
)
from shard_client.wire.connection import Address
from tests.doubles.probed_replica_set import ProbedReplicaSet
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.ports import free_port
from tests.harness.until import PATIENCE

Factory = Callable[[str, Iterable[Address]], ReplicaSet]


def motor(name: str, seeds: Iterable[Address]) -> ReplicaSet:
    return MotorReplicaSet(name, seeds, heartbeat=0.5)


@asynccontextmanager
async def closing(replica_set: ReplicaSet) -> AsyncIterator[ReplicaSet]:
    try:
        yield replica_set
    finally:
        await replica_set.close()


def seeds(member: ScriptedMember) -> tuple[Address, ...]:
    return (("127.0.0.1", member.port),)


@pytest.mark.parametrize("make", [ProbedReplicaSet, motor])
async def test_no_primary_is_a_retriable_error_in_time(make: Factory, member: ScriptedMember):
    member.primary = False
    async with closing(make("rs", seeds(member))) as replica_set:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(CommandError) as failure:
                await replica_set.select(PRIMARY, 0.3)
        assert failure.value.code == 133
        assert RESUMABLE_LABEL in failure.value.labels
        assert "for set rs" in failure.value.message
        preference = ReadPreference("secondary")
        assert await replica_set.select(preference, PATIENCE) == ("127.0.0.1", member.port)


async def test_waiting_ends_when_monitoring_stops(member: ScriptedMember):
    """A shard that has moved is looked up at its new address at once."""
    member.primary = False
    replica_set = motor("rs", seeds(member))
    waiting = asyncio.create_task(replica_set.select(PRIMARY, 60))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await replica_set.close()
        with pytest.raises(CommandError):
            await waiting
    with pytest.raises(CommandError):
        await replica_set.select(PRIMARY, 60)


@pytest.mark.parametrize("make", [ProbedReplicaSet, motor])
async def test_a_distrusted_member_is_checked_before_it_is_returned_again(
    make: Factory, member: ScriptedMember
):
    async with closing(make("rs", seeds(member))) as replica_set:
        address = await replica_set.select(PRIMARY, PATIENCE)
        before = member.commands["hello"] + member.commands["find"]
        replica_set.distrust(address)
        assert await replica_set.select(PRIMARY, PATIENCE) == address
        assert member.commands["hello"] + member.commands["find"] > before


async def test_the_primary_is_not_asked_without_a_pause_for_a_member_that_is_missing(
    member: ScriptedMember,
):
    async with closing(motor("rs", seeds(member))) as replica_set:
        await replica_set.select(PRIMARY, PATIENCE)
        with pytest.raises(CommandError):
            await replica_set.select(ReadPreference("secondary"), 1)
    assert 2 <= member.commands["find"] <= 12  # each is counted as it comes and as it is answered


@pytest.mark.parametrize("error", [RuntimeError("a defect"), PyMongoError("no primary")])
async def test_checks_that_fail_unexpectedly_have_a_pause(
    member: ScriptedMember, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    """Also one whose failure cannot be logged."""
    checks = 0

    def find(*_: object) -> None:
        nonlocal checks
        checks += 1
        raise error

    member.primary = False
    async with closing(MotorReplicaSet("rs", seeds(member), heartbeat=0.5)) as replica_set:
        monkeypatch.setattr(type(replica_set._client), "__getitem__", find)
        monkeypatch.setattr(MotorReplicaSet, "_known_of_members", lambda _: 1 / 0)
        with capture_logs() as logged, pytest.raises(CommandError):
            await replica_set.select(PRIMARY, 1)
        monkeypatch.undo()
    assert 1 <= checks <= 12
    assert [line["event"] for line in logged].count("Unexpected error") == checks


async def test_each_of_two_hung_members_stays_distrusted_until_it_answers():
    a, b, c = ((name, 1) for name in "abc")
    secondary = Member("secondary")
    async with closing(motor("rs", (a, b, c))) as replica_set:
        assert isinstance(replica_set, MotorReplicaSet)
        replica_set.topology_changed({a: secondary, b: Member("primary"), c: secondary}, ())
        before = time.monotonic()
        for hung in (a, b):
            replica_set.distrust(hung)
        nearest = ReadPreference("nearest")
        assert {await replica_set.select(nearest, 1) for _ in range(20)} == {c}
        hello = {"setName": "rs", "secondary": True}
        replica_set.record_answer(a, hello, asked=before)  # an answer to an earlier question
        replica_set.record_answer(b, hello, asked=time.monotonic())
        assert {await replica_set.select(nearest, 1) for _ in range(50)} == {b, c}
        assert replica_set.primary is None  # it has stepped down


def test_host_strings_are_parsed():
    assert parse_hosts("rs/a:1,b:2") == ("rs", (("a", 1), ("b", 2)))
    assert parse_hosts("rs/[::1]:2") == ("rs", (("::1", 2),))
    for bad in ("a:1", "rs/", "/a:1", "rs/a:x"):
        with pytest.raises(ValueError, match="not "):
            parse_hosts(bad)


ONE, TWO, THREE = ("a", 1), ("b", 2), ("c", 3)


@pytest.mark.parametrize(
    ("mode", "tags", "chosen"),
    [
        ("secondary", [{"dc": "east"}], ONE),
        ("secondary", [{"dc": "west"}], THREE),
        ("secondary", [{"dc": "west", "use": "reports"}], None),
        ("secondary", [{"dc": "north"}, {"dc": "west"}], THREE),
        ("secondary", [{"dc": "north"}, {}], ONE),
        ("secondary", [{"dc": "north"}], None),
        ("nearest", [{"use": "writes"}], TWO),
        ("nearest", [{"dc": "west"}], THREE),
        # A preferred or last-resort primary is chosen regardless of its tags.
        ("primaryPreferred", [{"dc": "west"}], TWO),
        ("secondaryPreferred", [{"dc": "north"}], TWO),
    ],
)
def test_members_match_the_tags(mode, tags, chosen):
    members = {
        ONE: Member("secondary", {"dc": "east"}),
        TWO: Member("primary", {"dc": "east", "use": "writes"}),
        THREE: Member("secondary", {"dc": "west"}),
    }
    preference = ReadPreference.of({"mode": mode, "tags": tags})
    assert preference.choose(members, draw=lambda near: near[0]) == chosen


@pytest.mark.parametrize(
    ("mode", "near"),
    [
        ("nearest", {ONE, TWO}),
        ("secondary", {ONE}),
        ("secondaryPreferred", {ONE}),
        ("primaryPreferred", {TWO}),
        ("primary", {TWO}),
    ],
)
def test_any_member_within_the_latency_window_is_chosen(mode: str, near: set[Address]):
    members = {
        ONE: Member("secondary", round_trip=0.030),
        TWO: Member("primary", round_trip=0.020),
        THREE: Member("secondary", round_trip=0.046),
    }
    preference, chance = ReadPreference(mode), Random(1)
    chosen = {preference.choose(members, draw=chance.choice) for _ in range(50)}
    assert chosen == near
    wide = {preference.choose(members, threshold=0.030, draw=chance.choice) for _ in range(50)}
    assert wide == near | (
        {THREE} if mode in ("nearest", "secondary", "secondaryPreferred") else set()
    )


@pytest.mark.parametrize("make", [ProbedReplicaSet, motor])
async def test_a_secondary_s_hello_names_the_primary(make: Factory, member: ScriptedMember):
    """A reply on any connection takes effect at once, without waiting for a heartbeat."""
    other = await ScriptedMember("rs", primary=False).start()
    both = [("127.0.0.1", each.port) for each in (member, other)]
    member.hosts = other.hosts = [f"{host}:{port}" for host, port in both]
    replica_set = MotorReplicaSet("rs", both) if make is motor else make("rs", both)
    try:
        anything = ReadPreference("secondary")
        assert await replica_set.select(PRIMARY, PATIENCE) == both[0]
        assert await replica_set.select(anything, PATIENCE) == both[1]
        member.primary, other.primary = False, True
        hello = {"setName": "rs", "secondary": True, "hosts": member.hosts}
        replica_set.observe(both[0], {**hello, "primary": member.hosts[1]})
        replica_set.observe(both[1], {**hello, "secondary": False, "isWritablePrimary": True})
        asked = member.commands["find"] + other.commands["find"]
        async with asyncio.timeout(HEARTBEAT / 2):
            assert await replica_set.select(PRIMARY, PATIENCE) == both[1]
            assert await replica_set.select(anything, PATIENCE) == both[0]
        assert member.commands["find"] + other.commands["find"] == asked
    finally:
        await replica_set.close()
        await other.stop()


def test_an_operator_reads_why_there_is_no_member():
    refused = "db1:27018: Connection refused"
    assert str(NoMemberError(PRIMARY, "rs", refused).with_labels("label")) == refused
    assert str(NoMemberError(PRIMARY, "rs")) == "none of its members is the primary"


async def test_a_primary_that_refuses_the_router_s_user_answers(member: ScriptedMember):
    member.fail("find", 13, "You are connecting directly to a shard.", times=2)
    async with closing(motor("rs", seeds(member))) as replica_set:
        (address,) = seeds(member)
        assert await replica_set.select(PRIMARY, PATIENCE) == address
        replica_set.distrust(address)
        with capture_logs() as logged:
            assert await replica_set.select(PRIMARY, PATIENCE) == address
        assert member.commands["find"]
        assert NO_PRIMARY not in [line["event"] for line in logged]


async def test_each_time_without_a_primary_is_logged_once_with_what_to_check():
    port = free_port()
    async with closing(motor("rs", (("127.0.0.1", port),))) as replica_set:
        with capture_logs() as logged:
            for _ in range(2):
                with pytest.raises(CommandError):
                    # The driver gives up after two seconds.
                    await replica_set.select(PRIMARY, 3)
    (line,) = [line for line in logged if line["log_level"] == "warning"]
    assert line["event"] == NO_PRIMARY
    assert line["set"] == "rs"
    assert "refused" in line["members"][f"127.0.0.1:{port}"]
    assert len([each for each in logged if each["event"] == NO_PRIMARY]) > 1


P, A, B = ("p", 1), ("a", 1), ("b", 1)


def of_role(role: str, written: float | None, seen: float | None = 1000.0) -> Member:
    return Member(role, last_write=written, seen=seen)


@pytest.mark.parametrize(
    ("members", "fresh"),
    [
        ({P: of_role("primary", 500), A: of_role("secondary", 420)}, {P, A}),
        ({P: of_role("primary", 500), A: of_role("secondary", 419)}, {P}),
        # The hellos have different times; a write's age counts at the time of the member's hello.
        ({P: of_role("primary", 500), A: of_role("secondary", 417, 997)}, {P, A}),
        ({P: of_role("primary", 500, 1010), A: of_role("secondary", 410)}, {P, A}),
        # Without a primary, staleness is measured against the newest secondary.
        ({A: of_role("secondary", 500), B: of_role("secondary", 420)}, {A, B}),
        ({A: of_role("secondary", 500), B: of_role("secondary", 419)}, {A}),
        # A member whose last write is unknown counts as fresh.
        ({P: of_role("primary", 500), A: of_role("secondary", None, None)}, {P, A}),
        ({P: Member("primary"), A: of_role("secondary", 500), B: of_role("secondary", 1)}, {P, A}),
        ({}, set()),
    ],
)
def test_only_members_within_the_limit_are_fresh(
    members: Mapping[Address, Member], fresh: set[Address]
):
    assert fresh_enough(members, 90.0).keys() == fresh


@pytest.mark.parametrize("mode", ["secondary", "secondaryPreferred", "nearest"])
def test_a_stale_member_is_not_chosen(mode: str):
    document = {"mode": mode, "maxStalenessSeconds": 90}
    members = {
        P: of_role("primary", 5000),
        A: of_role("secondary", 1000),
        B: of_role("secondary", 4990),
    }
    chosen = {ReadPreference.of(document).choose(members) for _ in range(100)}
    assert A not in chosen
    assert B in chosen
    unbounded = ReadPreference.of({"mode": mode})
    assert A in {unbounded.choose(members) for _ in range(200)}


def test_with_only_stale_secondaries_the_primary_or_none_is_chosen():
    members = {P: of_role("primary", 5000), A: of_role("secondary", 1000)}
    bound = {"maxStalenessSeconds": 90}
    assert ReadPreference.of({"mode": "secondary", **bound}).choose(members) is None
    assert ReadPreference.of({"mode": "secondaryPreferred", **bound}).choose(members) == P
