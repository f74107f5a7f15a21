"""The read scheduler: what a remote is asked after each reply, and what moves a member on."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from bson import Timestamp

from router.limits.memory import Memory
from router.limits.token_bucket import TokenBucket
from router.stream.remotes.flow_control import FlowControl
from router.stream.remotes.read_scheduler import ReadScheduler
from router.stream.remotes.remote import Remote
from router.stream_settings import StreamSettings
from shard_client.remote_cursor.cursor_reply import CursorBatch, KeyedToken, token_of
from tests.doubles.scripted_streams import PrivateStream, hwm
from tests.harness.until import until
from tests.unit.router.stream.streams_by_hand import CONFIG, A, B, at, opened

LIMITS = StreamSettings()


def cursor() -> Mock:
    """Return a remote cursor that can be probed, and records what it is told."""
    made = Mock(wants_pause=False, failing_for=None, address="h:1")
    made.pause.side_effect = lambda: setattr(made, "wants_pause", True)
    made.resume.side_effect = lambda: setattr(made, "wants_pause", False)
    made.take_probe_cost.return_value = 0.0
    return made


class Remotes(dict[int, Remote]):
    """The open remotes of a stream, which are not read."""

    def __init__(self, stream: PrivateStream, settings: StreamSettings) -> None:
        queues = stream.merger.remotes.items()
        super().__init__({n: Remote(queue, cursor(), settings) for n, queue in queues})
        self.probed: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def probe(self, remote: Remote, seconds: float) -> None:
        self.probed.append(remote.number)


class Scheduled:
    """A stream of two shards, with its read scheduler; all members have shown their progress."""

    def __init__(self, **changes: Any) -> None:
        settings = replace(LIMITS, **changes)
        self.loop = asyncio.get_running_loop()
        self.stream = opened()
        self.remotes = Remotes(self.stream, settings)
        self.written: list[int] = []
        target = SimpleNamespace(
            budget=TokenBucket(20, 100),
            next_done=lambda now: now,
            request=lambda _, number: self.written.append(number),
        )
        resources: Any = SimpleNamespace(
            noop_writer=SimpleNamespace(target_at=lambda *_: target),
            settings=settings,
            memory=Memory(1 << 40),
        )
        self.flow = FlowControl(settings, resources.memory, lambda: False)
        remotes: Any = self.remotes
        self.scheduler = ReadScheduler(self.stream, remotes, self.flow, resources)
        self.scheduler.resume_prefetch()
        for number in (CONFIG, A, B, CONFIG, A, B):
            self.reply(number, 11)

    def reply(self, number: int, time: int, *events: int) -> None:
        """Process a remote's reply up to ``time``, after which its member's oplog ends."""
        made = [at(event, number) for event in events]
        reached = KeyedToken.of(token_of(made[-1][1]) if made else hwm(time))
        batch = CursorBatch(7, made, reached, sum(len(raw) for _, raw in made))
        batch.operation_time = Timestamp(time, 1)
        self.stream.batch_arrived(number, batch)
        remote, now = self.remotes[number], self.loop.time()
        self.scheduler.batch_arrived(remote, batch, now, waited_for=False)

    def cursor(self, number: int) -> Any:
        return self.remotes[number].cursor


@pytest.fixture
async def scheduled() -> AsyncIterator[Scheduled]:
    scheduled = Scheduled()
    yield scheduled
    scheduled.scheduler.close()


async def test_a_request_that_no_event_needs_any_more_is_withdrawn(scheduled: Scheduled):
    scheduled.reply(A, 20, 20)
    await asyncio.sleep(0)
    scheduled.reply(B, 25)
    assert scheduled.scheduler.confirm_noop(B) is None
    noops = scheduled.remotes[B].noops
    assert (noops.state, noops.count) == ("none", 0), "it was not sent"
    scheduled.reply(A, 30, 30)
    await asyncio.sleep(0)
    assert scheduled.written.count(B) == 2
    scheduled.scheduler.noop_sent(B, Timestamp(30, 1), 0.001)
    assert (noops.state, noops.count) == ("sent", 1)


async def test_several_replies_cause_one_check_and_the_earliest_counts():
    scheduled = Scheduled(noop_delay=30.0)
    for time in (20, 21, 22):
        scheduled.reply(A, time, time)
    await asyncio.sleep(0.01)
    assert not scheduled.written, "an idle member gets a no-op after the delay"
    scheduled.scheduler.noop_done(CONFIG, moved=False)
    scheduled.reply(A, 23, 23)
    # The end of a write causes a check at once.
    await until(lambda: sorted(scheduled.written) == [CONFIG, B])
    scheduled.scheduler.close()


async def test_without_clients_remotes_pause_and_get_no_noops():
    scheduled = Scheduled(prefetch_time=0.0)
    await asyncio.sleep(0.001)
    scheduled.reply(A, 20, 20)
    await asyncio.sleep(0.01)
    assert (scheduled.cursor(A).wants_pause, scheduled.written) == (True, [])
    scheduled.scheduler.resume_prefetch()
    scheduled.scheduler.check_laggards()
    await until(lambda: sorted(scheduled.written) == [CONFIG, B])
    assert not scheduled.cursor(A).wants_pause
    scheduled.scheduler.close()


async def test_a_member_whose_watermark_stands_still_is_left():
    scheduled = Scheduled(watermark_timeout=0.01)
    scheduled.reply(A, 20, 20)
    scheduled.remotes[B].record_noop(Timestamp(20, 1), scheduled.loop.time())
    await asyncio.sleep(0.02)
    scheduled.reply(B, 15)
    scheduled.cursor(B).leave_member.assert_called_once()
    scheduled.scheduler.close()
