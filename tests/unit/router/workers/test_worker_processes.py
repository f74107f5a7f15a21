"""Workers: how they start and end, and which one gets the next connection."""

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import anyio
import pytest
import uvloop
from structlog.testing import capture_logs

from router.config.settings import Settings, load_settings
from router.counters.process_counters import Counters
from router.limits.connection_limit import ConnectionLimit
from router.peers.messages import (
    ConnectionEnded,
    Drain,
    Load,
    ServeClient,
    WorkerMessage,
    WorkerSignal,
)
from router.tasks import OwnedTasks
from router.workers.channel import Channel, socket_pair
from router.workers.child import Child, WorkerStart
from router.workers.dispatcher import ConnectionDispatcher, choose_worker
from router.workers.supervisor import Supervisor, WorkerFailedError
from router.workers.worker import _handle_messages
from tests.harness.until import PATIENCE, until


def settings(port: int = 0) -> Settings:
    return load_settings(
        {"sharding": {"configDB": "cfg/127.0.0.1:1"}, "net": {"port": port}, "workers": 2}
    )


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder in which the router makes its private folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_message_to_a_process_that_is_gone_is_lost() -> None:
    async def send() -> None:
        channel = Channel(socket_pair()[0])
        channel.close()
        await asyncio.sleep(0)
        channel.send(WorkerSignal.END)

    uvloop.run(send())


def test_messages_survive_a_lack_of_memory() -> None:
    async def check() -> None:
        ours, theirs = socket_pair()
        short = Mock(wraps=ours)  # the system refuses it memory once
        refusal = OSError(errno.ENOBUFS, "No buffer space available")
        short.send.side_effect = chain([refusal], repeat(DEFAULT))
        sending, receiving = Channel(short), Channel(theirs)
        for number in range(3):
            sending.send(ConnectionEnded(number))
        async with asyncio.timeout(PATIENCE):
            for number in range(3):
                assert await receiving.receive() == (ConnectionEnded(number), None)
        sending.close()
        receiving.close()

    uvloop.run(check())


def test_messages_wait_for_a_process_that_does_not_read() -> None:
    async def check() -> None:
        ours, theirs = map(Channel, socket_pair())
        sent = 2000
        for number in range(sent):
            ours.send(ConnectionEnded(number))
        with socket.socket() as connection:
            with pytest.raises(BlockingIOError):
                ours.hand_over(connection, ServeClient("driver", sent))
            for number in range(sent):
                assert await theirs.receive() == (ConnectionEnded(number), None)
            ours.hand_over(connection, ServeClient("driver", sent))
        received = await theirs.receive()
        assert received is not None
        message, connection_or_none = received
        assert message == ServeClient("driver", sent)
        assert connection_or_none is not None
        connection_or_none.close()
        ours.close()
        assert await theirs.receive() is None
        theirs.close()

    uvloop.run(check())


async def test_a_worker_s_failed_start_ends_the_router_with_its_status(folders: Path) -> None:
    ending = partial(Child.start, program="tests.doubles.ending_worker")
    with pytest.raises(WorkerFailedError, match="ended with status 3") as raised:
        await Supervisor(settings(), [], start_child=ending).run(asyncio.Event())
    assert raised.value.status == 3
    assert not os.listdir(folders)


async def test_the_start_fails_if_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch, folders: Path
) -> None:
    monkeypatch.setattr("sys.executable", "/does/not/exist")
    with pytest.raises(WorkerFailedError, match="status 71"):
        await Supervisor(settings(), []).run(asyncio.Event())
    assert not os.listdir(folders)


async def test_a_signal_before_all_are_ready_ends_the_started_workers(folders: Path) -> None:
    started: list[int] = []

    async def noted(start: WorkerStart) -> Child:
        made = await Child.start(start, program="tests.doubles.idle_worker")
        started.append(made.process.pid)
        stop.set()
        return made

    stop = asyncio.Event()
    await asyncio.wait_for(Supervisor(settings(), [], start_child=noted).run(stop), PATIENCE)
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not os.listdir(folders)


class _ReadyChild(Child):
    """A worker that reports ready at once, and whose load cannot be asked for."""

    async def reports(self) -> AsyncIterator[WorkerMessage]:
        yield WorkerSignal.READY
        async for report in super().reports():
            yield report

    async def ask_load(self, timeout: float) -> None:
        raise RuntimeError("planted")


async def test_a_dispatcher_that_fails_ends_the_router(folders: Path) -> None:
    """A router that goes on without it would accept nobody for ever."""
    ready = partial(_ReadyChild.start, program="tests.doubles.idle_worker")
    with (
        capture_logs() as logged,
        pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="planted")),
    ):
        async with asyncio.timeout(PATIENCE), anyio.create_task_group() as tasks:
            tasks.start_soon(Supervisor(settings(), [], start_child=ready).run, asyncio.Event())
            await until(lambda: "Waiting for connections" in [line["event"] for line in logged])
            _reader, writer = await asyncio.open_connection("127.0.0.1", logged[-1]["port"])
            writer.close()
    assert not os.listdir(folders)


async def test_a_port_that_is_taken_before_listening_ends_the_router(folders: Path) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))

        async def started(start: WorkerStart) -> Child:
            rival.listen()
            return await _ReadyChild.start(start, program="tests.doubles.idle_worker")

        supervisor = Supervisor(settings(rival.getsockname()[1]), [], start_child=started)
        with pytest.raises(OSError, match="in use"):
            await asyncio.wait_for(supervisor.run(asyncio.Event()), PATIENCE)
    assert not os.listdir(folders)


class _Worker(Child):
    """A worker of the test, which may leave while it is asked for its load."""

    def __init__(self, number: int, leave: Callable[[], None]) -> None:
        ours, self.theirs = map(Channel, socket_pair())
        super().__init__(number, None, ours)  # type: ignore[arg-type]
        self._leave = leave

    async def ask_load(self, timeout: float) -> None:
        self._leave()


async def test_a_connection_waits_for_a_worker_if_the_last_one_dies_meanwhile() -> None:
    dealer = ConnectionDispatcher(ConnectionLimit(10))
    port = await dealer.open("driver", ["127.0.0.1"], 0)
    dealer.listen()
    died = asyncio.Event()

    def die() -> None:
        dealer.remove(1)
        died.set()

    dealer.add(_Worker(1, die))
    dispatching = asyncio.create_task(dealer.dispatch())
    async with asyncio.timeout(PATIENCE):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await died.wait()
        await until(lambda: dealer._some._waiters)  # it waits for a worker
        next_one = _Worker(2, lambda: None)
        dealer.add(next_one)
        received = await next_one.theirs.receive()
    assert received is not None
    assert received[0] == ServeClient("driver", 1)
    writer.close()
    dispatching.cancel()
    dealer.close()


async def test_connections_of_two_ports_are_placed_by_the_same_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.workers.dispatcher._LOAD_TIMEOUT", PATIENCE)
    dispatcher = ConnectionDispatcher(ConnectionLimit(10))
    ports = [await dispatcher.open(port, ["127.0.0.1"], 0) for port in ("driver", "feed")]
    dispatcher.listen()
    ends = []
    for number in (1, 2):
        ours, theirs = map(Channel, socket_pair())
        dispatcher.add(Child(number, None, ours))  # type: ignore[arg-type]
        ends.append(theirs)
    reports = [asyncio.create_task(_read(child)) for child in dispatcher.children.values()]
    dispatching = asyncio.create_task(dispatcher.dispatch())
    async with asyncio.timeout(PATIENCE):
        clients = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
        for end in ends:
            assert await end.receive() == (WorkerSignal.REPORT_LOAD, None)
        # Both connections have been accepted: the second one waits for the first one's answers.
        await until(lambda: dispatcher._asking._waiters)
        for end, busy in zip(ends, (1.0, 0.0), strict=True):
            end.send(Load(busy=busy))
        placed = [await ends[1].receive() for _ in clients]
    messages = {message[0] for message in placed if message is not None}
    assert {message.port for message in messages if isinstance(message, ServeClient)} == {
        "driver",
        "feed",
    }
    for _reader, writer in clients:
        writer.close()
    for task in (dispatching, *reports):
        task.cancel()
    dispatcher.close()


async def _read(child: Child) -> None:
    async for _message in child.reports():
        pass


async def test_a_worker_answers_its_parent_while_it_drains(tmp_path: Path) -> None:
    ours, theirs = map(Channel, socket_pair())
    process = SimpleNamespace(cursors={}, counters=Counters())
    listener = SimpleNamespace(drain=asyncio.sleep)  # its commands in flight do not end
    parts: Any = (process, listener, None)
    async with asyncio.timeout(PATIENCE), OwnedTasks() as tasks:
        handling = asyncio.create_task(_handle_messages(tmp_path, theirs, parts, tasks))
        assert await ours.receive() == (WorkerSignal.READY, None)
        for message in (Drain(PATIENCE), WorkerSignal.REPORT_LOAD):
            ours.send(message)
        assert await ours.receive() == (Load(), None)
        ours.send(WorkerSignal.END)
        await handling
    ours.close()
    theirs.close()


async def test_all_hosts_get_one_port_that_is_closed_before_listening() -> None:
    dealer = ConnectionDispatcher(ConnectionLimit(10))
    port = await dealer.open("driver", ["127.0.0.1", "127.0.0.2"], 0)
    for host in ("127.0.0.1", "127.0.0.2"):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, port)
    dealer.listen()
    for host in ("127.0.0.1", "127.0.0.2"):
        _reader, writer = await asyncio.open_connection(host, port)
        writer.close()
    taken = ConnectionDispatcher(ConnectionLimit(10))
    with pytest.raises(OSError, match="in use"):
        await taken.open("driver", ["127.0.0.1"], port)
    taken.close()
    dealer.close()


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("pattern", ["s", "m s", "m s s", "m m s"])
def test_simultaneous_connections_are_spread(workers: int, pattern: str) -> None:
    """Each opens a stream, or waits as a monitor."""
    numbers = range(1, workers + 1)
    found = {kind: dict.fromkeys(numbers, 0) for kind in "sm"}
    last = 0
    for kind in pattern.split() * 8 * workers:
        recent = {each: sum(by[each] for by in found.values()) for each in numbers}
        loads = {each: Load(found["s"][each], recent[each]) for each in numbers}
        last = choose_worker(loads, recent, last)
        found[kind][last] += 1
    most, fewest = max(found["s"].values()), min(found["s"].values())
    assert most - fewest <= 3, "a random choice would spread them less evenly"


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        # A busy worker gets no connections while another is idle.
        ({1: Load(cursors=1, busy=0.95), 2: Load(cursors=1000, busy=0.02)}, 2),
        # Little work does not outweigh streams.
        ({1: Load(cursors=3, busy=0.0), 2: Load(cursors=2, busy=0.1)}, 2),
        # Of workers with as many streams, that with fewer connections is chosen.
        ({1: Load(connections=3), 2: Load(connections=1)}, 2),
    ],
)
def test_the_worker_with_less_to_do_is_chosen(loads: dict[int, Load], chosen: int) -> None:
    assert {choose_worker(loads, {}, last) for last in (0, 1, 2)} == {chosen}


def test_equal_workers_take_turns() -> None:
    loads = {number: Load() for number in (1, 2, 3)}
    chosen = [0]
    for _ in range(6):
        chosen.append(choose_worker(loads, {}, chosen[-1]))
    assert chosen[1:] == [1, 2, 3, 1, 2, 3]
