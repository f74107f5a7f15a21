import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_client.errors import NetworkError, ProtocolError
from shard_client.wire.frame_protocol import DEFAULT_KEEP, FrameStream
from tests.doubles.fed_transport import FedTransport


def frame_of(content: bytes) -> bytes:
    return (16 + len(content)).to_bytes(4, "little") + bytes(12) + content


def fed_stream(keep: int = DEFAULT_KEEP) -> tuple[FrameStream, FedTransport]:
    stream = FrameStream(keep=keep)
    return stream, FedTransport(stream)


contents = st.one_of(
    st.binary(max_size=50), st.integers(0, 30_000).map(bytes), st.just(os.urandom(300_000))
)


async def receive_all(pieces: list[bytes], keep: int) -> list[bytes]:
    stream, transport = fed_stream(keep)
    frames: list[bytes] = []

    async def read() -> None:
        while (frame := await stream.receive(bytes)) is not None:
            frames.append(frame)

    reader = asyncio.create_task(read())
    for piece in pieces:
        rest = piece
        while rest:
            rest = rest[transport.feed(rest) :]
            await asyncio.sleep(0)
    for _ in range(3):  # the reader takes the remaining frames without waiting
        await asyncio.sleep(0)
    stream.connection_lost(None)
    await reader
    return frames


@given(st.lists(contents, max_size=8), st.data())
def test_frames_do_not_depend_on_the_cuts_of_the_stream(bodies, data):
    frames = [frame_of(body) for body in bodies]
    whole = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    keep = data.draw(st.sampled_from([0, 64 * 1024, 10_000_000]))
    assert asyncio.run(receive_all(pieces, keep)) == frames


async def test_a_peer_that_keeps_sending_is_paused():
    stream, transport = fed_stream()
    data = frame_of(bytes(1000)) * 1000
    taken = transport.feed(data)
    assert transport.paused
    assert taken < 20_000
    for _ in range(1000):
        reader = asyncio.create_task(stream.receive(bytes))
        await asyncio.sleep(0)
        taken += transport.feed(data[taken:])
        assert await reader == frame_of(bytes(1000))
    assert taken == len(data)


async def test_memory_grows_with_received_bytes_not_with_the_header_s_length():
    stream, transport = fed_stream()
    reader = asyncio.create_task(stream.receive(bytes))
    await asyncio.sleep(0)
    transport.feed((30_000_000).to_bytes(4, "little") + bytes(12) + bytes(8 * 1024))
    assert len(stream._view) <= 256 * 1024
    transport.feed(bytes(1_000_000))
    assert 1_000_000 < len(stream._view) <= 3_000_000
    reader.cancel()


async def test_a_frame_is_announced_and_received_only_when_somebody_waits_for_it():
    stream, transport = fed_stream()
    frame = frame_of(bytes(500_000))
    announced = asyncio.create_task(stream.announced())
    await asyncio.sleep(0)
    taken = transport.feed(frame)
    assert await announced == frame[:24]
    assert transport.paused
    assert taken == len(stream._view) == 8 * 1024
    reader = asyncio.create_task(stream.receive(len))
    await asyncio.sleep(0)
    transport.feed(frame[taken:])
    assert await reader == len(frame)
    stream.connection_lost(None)
    assert await stream.announced() is None


async def test_a_frame_is_dropped_if_its_parser_raises():
    stream, transport = fed_stream()
    transport.feed(frame_of(b"a") + frame_of(b"b"))

    def refuse(_frame: memoryview) -> bytes:
        raise ProtocolError("no")

    with pytest.raises(ProtocolError):
        await stream.receive(refuse)
    assert await stream.receive(bytes) == frame_of(b"b")


async def test_a_cancelled_receiver_loses_no_frame():
    stream, transport = fed_stream()
    reader = asyncio.create_task(stream.receive(bytes))
    await asyncio.sleep(0)
    transport.feed(frame_of(b"a"))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await stream.receive(bytes) == frame_of(b"a")


async def test_frames_before_the_end_are_still_received():
    # As when a client sends an unacknowledged write and disconnects.
    stream, transport = fed_stream()
    transport.feed(frame_of(b"a") + frame_of(b"b") + frame_of(b"cut off")[:-1])
    stream.connection_lost(None)
    await stream.drain()
    assert await stream.receive(bytes) == frame_of(b"a")
    assert await stream.receive(bytes) == frame_of(b"b")
    assert await stream.receive(bytes) is None


async def test_the_end_wakes_all_waiting_tasks():
    stream = FrameStream()
    FedTransport(stream)
    stream.pause_writing()
    reader = asyncio.create_task(stream.receive(bytes))
    writer = asyncio.create_task(stream.drain())
    ended = asyncio.Event()
    stream.when_closed(ended.set)
    await asyncio.sleep(0)
    error = OSError("cut")
    stream.connection_lost(error)
    assert await reader is None
    await ended.wait()
    with pytest.raises(NetworkError):
        await writer
    with pytest.raises(NetworkError):
        stream.write(b"x")
    assert stream.closed
    assert stream.lost_error is error


async def test_a_large_frame_is_received_in_turns():
    stream, transport = fed_stream()
    frame = frame_of(os.urandom(1_000_000))
    turns = []

    async def turn():
        turns.append(transport.paused)

    announced = asyncio.create_task(stream.announced())
    await asyncio.sleep(0)
    taken = transport.feed(frame)
    await announced
    reader = asyncio.create_task(stream.receive(bytes, portion=100_000, turn=turn))
    while not reader.done():
        await asyncio.sleep(0)
        before, taken = taken, taken + transport.feed(frame[taken:])
        assert taken - before <= 100_000
    assert await reader == frame
    assert turns == [True] * 9
