"""What TLS costs an event: CPU time of sending and of receiving it, with and without TLS.

Run: .venv/bin/python -m bench.micro_tls

One process sends frames of events, as the router does to its clients; another receives them, as the
router does from the members. Both use the router's connections under uvloop. The handshake is not
counted. Plain and encrypted rounds alternate, so that a change of the machine's load meets both.
"""

import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import uvloop

from shard_client.wire.documents import encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import build_msg
from shard_client.wire.tls import TlsContexts, TlsFiles
from tests.harness.certificates import Authority

EVENT_BYTES = 1000
EVENTS_A_FRAME = (1, 100, 1000)
EVENTS = 200_000
ROUNDS = 3
KEEP = 8 * 1024 * 1024


async def send(pipe: Pipe, tls: TlsContexts | None, frame: bytes, frames: int) -> None:
    """Serve one client, which asks for each frame; report the CPU time through the pipe."""
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[FrameStream] = loop.create_future()
    server = await loop.create_server(
        lambda: FrameStream(connected.set_result),
        "127.0.0.1",
        0,
        ssl=None if tls is None else tls.incoming,
    )
    pipe.send(server.sockets[0].getsockname()[1])
    stream = await connected
    await stream.receive(bytes)
    began = time.process_time()
    for _ in range(frames):
        stream.write(frame)
        await stream.drain()
        await stream.receive(bytes)
    pipe.send(time.process_time() - began)
    server.close()


async def receive(port: int, tls: TlsContexts | None, frames: int) -> float:
    """Receive all frames and return the CPU time in seconds."""
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(
        lambda: FrameStream(keep=KEEP),
        "127.0.0.1",
        port,
        ssl=None if tls is None else tls.outgoing,
    )
    request = build_msg(encode({"getMore": 1}), request_id=1)
    stream.write(request)
    began = time.process_time()
    for _ in range(frames):
        await stream.receive(bytes)
        stream.write(request)
    used = time.process_time() - began
    await stream.close()
    return used


def one_round(tls: TlsContexts | None, files: TlsFiles, per_frame: int) -> tuple[float, float]:
    """Return the microseconds of CPU time for sending and for receiving one event."""
    frame = build_msg(encode({"b": b"x" * (EVENT_BYTES * per_frame)}), request_id=1)
    frames = max(1, EVENTS // per_frame // (10 if per_frame == 1 else 1))
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.Process(
        target=run_sender, args=(theirs, files if tls else None, frame, frames)
    )
    sender.start()
    received = uvloop.run(receive(ours.recv(), tls, frames))
    sent = ours.recv()
    sender.join()
    events = frames * per_frame
    return sent / events * 1e6, received / events * 1e6


def run_sender(pipe: Pipe, files: TlsFiles | None, frame: bytes, frames: int) -> None:
    """Run the sending process."""
    uvloop.run(send(pipe, None if files is None else TlsContexts(files), frame, frames))


def main() -> None:
    """Print a table: microseconds of CPU time for an event."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        files = TlsFiles(authority.issue("router"), ca=authority.file)
        tls = TlsContexts(files)
        print(f"CPU time for an event of {EVENT_BYTES} bytes, in µs; best of {ROUNDS} rounds")
        print("events a frame | sending: plain, TLS | receiving: plain, TLS")
        for per_frame in EVENTS_A_FRAME:
            rounds = [
                (one_round(None, files, per_frame), one_round(tls, files, per_frame))
                for _ in range(ROUNDS)
            ]
            plain = [min(each[0][side] for each in rounds) for side in (0, 1)]
            encrypted = [min(each[1][side] for each in rounds) for side in (0, 1)]
            print(
                f"{per_frame:14} | {plain[0]:8.2f} {encrypted[0]:8.2f} "
                f"| {plain[1]:8.2f} {encrypted[1]:8.2f}"
            )


if __name__ == "__main__":
    main()
