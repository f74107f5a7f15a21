"""Openings beyond a limit are refused with a clear error; closed streams free their share."""

import pytest
from bson import Timestamp

from router.cursors.cursor import Owner
from router.limits.cursor_admission import NOBODY, Admission, Admitted, Quota
from router.limits.memory import LEAST_BATCH, Holding, Memory, reply_share
from router.stream_settings import StreamSettings
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import BIG, OWNER, ScriptedCluster, stream
from tests.harness.until import PATIENCE, until

ALICE, CLIENT = Quota(user="a@db"), Quota("10.0.0.1")


@pytest.mark.parametrize(
    ("kind", "limits", "quota", "others", "reason"),
    [
        ("cursor", {"max_cursors": 2}, NOBODY, False, "cursors are open"),
        ("cursor", {"max_cursors_per_client": 2}, CLIENT, True, "cursors of 10.0.0.1 are open"),
        ("cursor", {"max_cursors_per_user": 2}, ALICE, True, "cursors of the user a@db are open"),
        ("stream", {"max_streams": 2}, NOBODY, False, "different change streams are open"),
        (
            "stream", {"max_streams_per_client": 2}, CLIENT, True,
            "different change streams were opened by 10.0.0.1",
        ),
        (
            "stream", {"max_streams_per_user": 2}, ALICE, True,
            "different change streams were opened by the user a@db",
        ),
        (
            "stream", {"member_connections": 4}, NOBODY, False,
            "different change streams are open, each with a connection to every shard",
        ),
        (
            "stream", {"total_buffer_bytes": 11 * 4 * LEAST_BATCH}, NOBODY, False,
            "different change streams are open, which leaves no memory to read another one from "
            "4 members",
        ),
        (
            "stream", {"user_buffer_bytes": 11 * 4 * LEAST_BATCH}, ALICE, True,
            "different change streams were opened by the user a@db, which leaves no memory to read "
            "another one from 4 members",
        ),
        (
            "lookup", {"total_buffer_bytes": 2 * 4 * LEAST_BATCH}, NOBODY, False,
            "cursors look documents up, which leaves no memory for another one",
        ),
        (
            "lookup", {"user_buffer_bytes": 2 * 4 * LEAST_BATCH}, ALICE, True,
            "cursors of the user a@db look documents up, which leaves no memory for another one",
        ),
    ],
)  # fmt: skip
def test_a_third_beyond_a_limit_is_refused(
    kind: str, limits: dict[str, int], quota: Quota, others: bool, reason: str
) -> None:
    """Each limit has room for two, of which a stream has cursors on four members."""
    settings = StreamSettings(**limits)
    memory = Memory(settings.total_buffer_bytes, settings.user_buffer)
    admission = Admission(settings, memory)
    lookups = []

    def admit(charged: Quota) -> Admitted | None:
        if kind == "cursor":
            return admission.admit_cursor(charged)
        if kind == "stream":
            return admission.admit_stream(charged, 4)
        admission.admit_lookup(charged, 4)
        lookups.append(memory.of(charged.user))
        lookups[-1].add(lookups=1)
        return None

    first, _ = admit(quota), admit(quota)
    with pytest.raises(CommandError) as refused:
        admit(quota)
    error, (parameter,) = refused.value, +admission.refused
    assert (error.code, error.code_name) == (365, "TemporarilyUnavailable")
    assert error.message == (
        f"too many change streams: 2 {reason}; close some, or raise {parameter}"
    )
    # Drivers that support these labels retry with backoff; the resumable label is not set.
    assert error.labels == {"SystemOverloadedError", "RetryableError"}
    other = Quota("10.0.0.2", "b@db")
    if others:
        admit(other)
    else:
        with pytest.raises(CommandError):
            admit(other)
    if first is None:
        lookups[0].add(lookups=-1)
    else:
        first.close()
        first.close()
    admit(quota)


async def test_one_user_s_full_buffers_do_not_stop_another_s_streams(cluster: ScriptedCluster):
    """Nobody reads. Four streams of one user would hold four times the events."""
    limit, batch = 8 * LEAST_BATCH, LEAST_BATCH // 8
    registry = cluster.registry(
        user_buffer_bytes=limit, batch_target_bytes=batch, first_ahead_bytes=limit
    )
    alice, bob = Owner(user="a@db"), Owner(user="b@db")
    for number in range(4):
        await registry.open(stream(let={"n": number}), alice)
    await registry.open(stream(let={"n": 4}), bob)
    memory = registry.streams.resources.memory
    of_alice, of_bob = memory.of("a@db"), memory.of("b@db")
    for number in range(1, 41):
        cluster.shards["s0"].insert(Timestamp(100 + number, 1), number, filler="x" * 10_000)
        await until(lambda number=number: of_bob.held > number * 10_000)
    await until(lambda: of_alice.short)
    assert of_alice.held < limit + 4 * LEAST_BATCH
    assert not of_bob.short
    assert memory.held == of_alice.held + of_bob.held
    assert registry.streams.admission.users(1)[0]["user"] == "a@db"


async def test_a_slow_client_without_room_for_remotes_can_resume(cluster: ScriptedCluster):
    """The shared stream has passed it, and there is no room for another one, so it retries."""
    registry = cluster.registry(share_log_bytes=BIG, max_streams=1)
    slow, _ = await registry.open(stream(), OWNER)
    fast, _ = await registry.open(stream(), OWNER)
    for second in range(101, 111):
        cluster.insert(second, size=BIG)
        while not (await fast.next_batch(None, PATIENCE)).events:
            pass

    async def read_on() -> None:
        while True:
            await slow.next_batch(None, PATIENCE)

    with pytest.raises(CommandError) as failure:
        await read_on()
    assert failure.value.code == 365
    assert failure.value.labels == {"ResumableChangeStreamError"}


def test_large_requests_of_open_cursors_stay_within_the_memory():
    memory = Memory(1024 * 1024, 512 * 1024)
    admission = Admission(StreamSettings(), memory)
    quota = Quota(user="alice")
    first = admission.admit_cursor(quota, 100_000)
    assert memory.held == 400_000
    with pytest.raises(CommandError) as failure:
        admission.admit_cursor(quota, 100_000)
    assert failure.value.code == 365
    assert "userBufferBytes" in failure.value.message
    small, other = admission.admit_cursor(quota), admission.admit_cursor(Quota(), 100_000)
    first.close()
    again = admission.admit_cursor(quota, 100_000)
    for admitted in (small, other, again):
        admitted.close()
    assert memory.held == 0


def test_a_user_s_part_of_the_memory():
    """It counts in the whole, has a limit of its own, and ends with its last holder."""
    memory = Memory(1000, 800)
    assert memory.of(None) is memory
    alice, bob = memory.of("alice"), memory.of("bob")
    assert memory.of("alice") is alice
    held = Holding(alice)
    held.size = 801
    assert (memory.held, bob.held) == (801, 0)
    assert (alice.short, bob.short, memory.short) == (True, False, False)
    bob.add(held=200)
    assert (bob.short, memory.short) == (True, True)
    held.size = 0
    assert (alice.held, memory.held) == (0, 200)
    del alice, held
    assert memory.of("alice").held == 0


def test_a_user_s_batches_shrink_with_its_remotes_and_with_all():
    memory = Memory(64 * 1024 * 1024, 32 * 1024 * 1024)
    alice, bob = memory.of("alice"), memory.of("bob")
    alice.add(remotes=32)
    assert (alice.batch_bytes, bob.batch_bytes) == (256 * 1024, 512 * 1024)
    bob.add(remotes=1, lookups=31)
    assert (alice.batch_bytes, bob.batch_bytes) == (256 * 1024, 256 * 1024)


def test_clients_share_the_replies_evenly_within_bounds():
    settings = StreamSettings(replies_bytes=32 * LEAST_BATCH, reply_bytes=8 * LEAST_BATCH)
    shares = [reply_share(settings, clients) // LEAST_BATCH for clients in (0, 1, 4, 16, 32, 1000)]
    assert shares == [8, 8, 8, 2, 1, 1]
