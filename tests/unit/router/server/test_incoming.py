"""The memory that clients' messages take, whatever is compressed in them."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import bson

from router.counters.process_counters import Counters
from router.limits.client_limits import ClientLimits
from router.limits.fair_limit import FairLimit
from router.server.incoming import Incoming, PortShares
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import build_msg, compress_frame
from tests.doubles.fed_transport import FedTransport
from tests.harness.until import until

_ZLIB = 2


class _Intake(FairLimit):
    """Records what is asked for."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.asked: list[int] = []

    async def admit(self, client: str, size: int = 1) -> None:
        self.asked.append(size)
        await super().admit(client, size)


async def test_a_compressed_message_is_received_when_there_is_room_for_both_its_sizes() -> None:
    plain = build_msg(bson.encode({"ping": os.urandom(100_000), "$db": "admin"}), request_id=1)
    frame = compress_frame(plain, _ZLIB)
    both = len(frame) + len(plain) - 16
    shared = PortShares(ClientLimits(), Counters())
    shared.intake = intake = _Intake(both + len(frame))

    def connect(host: str) -> tuple[FedTransport, Incoming]:
        stream = FrameStream()
        client: Any = SimpleNamespace(host=host, login=None, user=None)
        return FedTransport(stream), Incoming(stream, client, shared)

    async def send(transport: FedTransport) -> None:
        sent = 0
        while sent < len(frame):
            sent += transport.feed(frame[sent:])
            await asyncio.sleep(0)

    (first, held), (second, waiting) = connect("a"), connect("b")
    receives = asyncio.create_task(held.next())
    await asyncio.gather(send(first), receives)
    later = asyncio.create_task(waiting.next())
    await asyncio.sleep(0)
    sending = asyncio.create_task(send(second))
    await until(lambda: len(intake.asked) == 2)
    assert (intake.asked, intake.held) == ([both, both], both)
    assert waiting.count == 0, "the frame takes memory that nothing counts"
    held.release()
    await asyncio.gather(later, sending)
    message = later.result()
    assert message is not None
    assert message.frame == plain
    waiting.release()
    assert intake.held == 0
