"""The channel between parent and worker: messages, connections, and either side's end."""

import asyncio
import socket

import pytest

from router.workers.channel import DRIVER, FEED, Arrivals, HandedConnection, hand_over
from tests.harness.until import PATIENCE, until


async def test_connections_arrive_with_their_port_and_number() -> None:
    way, arriving = socket.socketpair()
    way.setblocking(False)
    arrived: asyncio.Queue[HandedConnection] = asyncio.Queue()
    arrivals = Arrivals(arriving, arrived.put_nowait)
    for number, port in enumerate((DRIVER, FEED, DRIVER)):
        near, far = socket.socketpair()
        with near:
            with far:
                hand_over(way, HandedConnection(port, 2**40 + number, far))
            handed = await asyncio.wait_for(arrived.get(), PATIENCE)
            assert handed[:2] == (port, 2**40 + number)
            with handed.connection:
                handed.connection.send(b"here")
                assert near.recv(10) == b"here"
    arrivals.close()
    way.close()


async def test_a_worker_that_does_not_read_is_an_error() -> None:
    way, arriving = socket.socketpair()
    way.setblocking(False)
    with way, arriving, socket.socket() as connection:
        handed = HandedConnection(DRIVER, 1, connection)
        with pytest.raises(BlockingIOError):
            _hand_over_often(way, handed)
        arriving.close()
        with pytest.raises(BrokenPipeError):
            hand_over(way, handed)


async def test_arrivals_end_with_the_parent() -> None:
    way, arriving = socket.socketpair()
    arrivals = Arrivals(arriving, lambda handed: None)
    way.close()
    await until(lambda: arriving.fileno() < 0)
    arrivals.close()


def _hand_over_often(way: socket.socket, handed: HandedConnection) -> None:
    for _ in range(100_000):
        hand_over(way, handed)
