"""The memory that clients' messages take, whatever is compressed in them."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

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


async def test_a_compressed_message_is_received_when_there_is_room_for_both_its_sizes() -> None:
    plain = build_msg(bson.encode({"ping": os.urandom(100_000), "$db": "admin"}), request_id=1)
    frame = compress_frame(plain, _ZLIB)
    both = len(frame) + len(plain) - 16
    shared = PortShares(ClientLimits(), Counters())
    shared.intake = intake = FairLimit(both + len(frame))
    intake.admit = admit = Mock(wraps=intake.admit)  # type: ignore[method-assign]

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
    await until(lambda: admit.call_count == 2)
    assert [call.args[1] for call in admit.call_args_list] == [both, both]
    assert intake.held == both
    assert waiting.count == 0, "the frame takes memory that nothing counts"
    held.release()
    await asyncio.gather(later, sending)
    message = later.result()
    assert message is not None
    assert message.frame == plain
    waiting.release()
    assert intake.held == 0
