"""Single steps of the router: µs of CPU for an event, without a cluster.

Run: .venv/bin/python -m bench.micro [reply|merge|tls ...]

`reply` splits a shard's reply and builds a client's, `merge` merges batches, and `tls` sends and
receives frames of events, plain and encrypted. Batches are held for a while, as the merge holds
them, so that memory is allocated and freed as in the router.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import bson
import uvloop
from bson import Timestamp

from bench.events import FIRST_SECOND, shard_events, token
from router.commands.reply_bodies import build_cursor_reply
from router.request.stream_request import parse_request
from router.stream.merge.merged_stream import MergedStream
from router.stream.readers.log_reader import Batch, LogReader
from router.stream.readers.resume_point import starting_point
from shard_client.bson.resume_token import ResumeToken
from shard_client.remote_cursor.cursor_reply import CursorBatch, KeyedToken
from shard_client.wire.documents import encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import build_msg
from shard_client.wire.tls import TlsContexts, TlsFiles
from tests.harness.certificates import Authority

ROUNDS, HELD = 10, 8
_START = Timestamp(FIRST_SECOND, 1)


def quickest(action: Callable[[], object], repeat: int, events: int) -> float:
    """Return the CPU microseconds per event in the fastest of ROUNDS rounds.

    Each round calls ``action`` ``repeat`` times; each call handles ``events`` events.
    """
    held: deque[object] = deque(maxlen=HELD)
    shortest = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(repeat):
            held.append(action())
        shortest = min(shortest, time.process_time() - begun)
    return shortest / repeat / events * 1e6


def reply() -> None:
    """Measure splitting a shard's reply, and building a client's."""
    for size in (600, 2048):
        for count in (1, 100, 1_000_000 // size):
            events = [raw for _, raw in shard_events(0, 1, count, size)]
            last = bson.encode({"_data": token(count - 1)})

            whole = Batch(events, sum(map(len, events)), last, closed=False)

            def build(whole: Batch = whole) -> bytes:
                return b"".join(build_cursor_reply("nextBatch", whole, 7, "bench.events"))

            body = build()

            def split(body: bytes = body) -> CursorBatch:
                batch = CursorBatch.of(body)
                batch.split()
                return batch

            times = max(1, 20_000 // count)
            split_us, built_us = quickest(split, times, count), quickest(build, times, count)
            print(
                f"reply  {size:5} B, {count:5} a batch: {split_us:.3f} split, {built_us:.3f} built"
            )


def merge(total: int = 200_000, size: int = 600, in_batch: int = 1_500) -> None:
    """Measure adding batches to a merged stream, and taking events out of it."""
    stage = {"$changeStream": {"startAtOperationTime": _START}}
    request = parse_request("db", {"aggregate": "c", "pipeline": [stage], "cursor": {}})
    for shards in (1, 2, 4, 8, 16):
        seconds = []
        for _ in range(3):
            names = {f"shard{n}": "" for n in range(shards)}
            stream = MergedStream(request, names, start_at=_START, topology_from=_START)
            position = LogReader(stream, starting_point(request, _START, 1))
            config, *remotes = stream.merger.remotes
            end = KeyedToken.of(ResumeToken.high_water_mark(Timestamp((1 << 32) - 1, 1), 1).raw)
            stream.batch_arrived(config, CursorBatch(7, [], end, 0))
            scripts = [_batches(n, shards, total, size, in_batch) for n in range(shards)]
            adding = taking = 0.0
            delivered = 0
            for part in zip(*scripts, strict=False):
                begun = time.process_time()
                for remote, batch in zip(remotes, part, strict=True):
                    stream.batch_arrived(remote, batch)
                adding += time.process_time() - begun
                begun = time.process_time()
                delivered += len(position.take(None).events)
                taking += time.process_time() - begun
            seconds.append((adding / delivered * 1e6, taking / delivered * 1e6))
        add, take = min(seconds, key=sum)
        print(f"merge  {shards:3} shards: {add:.3f} add, {take:.3f} take")


def _batches(shard: int, shards: int, total: int, size: int, each: int) -> list[CursorBatch]:
    """Return one shard's events, cut into the batches that its cursor delivers."""
    events = [(name.encode(), raw) for name, raw in shard_events(shard, shards, total, size)]
    parts = [events[first : first + each] for first in range(0, len(events), each)]
    return [
        CursorBatch(7, part, KeyedToken.of(bson.encode({"_data": part[-1][0].decode()})), 0)
        for part in parts
    ]


def tls(size: int = 1000) -> None:
    """Measure sending frames of events in one process and receiving them in another."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        files = TlsFiles(authority.issue("router"), ca=authority.file)
        for count in (1, 100, 1000):
            frame = build_msg(encode({"b": b"x" * (size * count)}), request_id=1)
            for name, used in (("plain", None), ("TLS", files)):
                frames = 20_000 if count == 1 else 200_000 // count
                inbox, outbox = multiprocessing.Pipe()
                sender = multiprocessing.Process(target=_serve, args=(outbox, used, frame, frames))
                sender.start()
                received = uvloop.run(_receiving(inbox.recv(), used, frames))
                sent = inbox.recv()
                sender.join()
                events = frames * count / 1e6
                print(
                    f"tls    {size} B, {count:4} a frame, {name}: "
                    f"{sent / events:.2f} send, {received / events:.2f} receive"
                )


def _serve(pipe: Pipe, files: TlsFiles | None, frame: bytes, frames: int) -> None:
    uvloop.run(_serving(pipe, files, frame, frames))


async def _serving(pipe: Pipe, files: TlsFiles | None, frame: bytes, frames: int) -> None:
    """Serve one client, which asks for each frame; report the CPU time through the pipe."""
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[FrameStream] = loop.create_future()
    context = TlsContexts(files).incoming if files else None
    server = await loop.create_server(
        lambda: FrameStream(connected.set_result), "127.0.0.1", 0, ssl=context
    )
    pipe.send(server.sockets[0].getsockname()[1])
    stream = await connected
    await stream.receive(bytes)
    begun = time.process_time()
    for _ in range(frames):
        stream.write(frame)
        await stream.drain()
        await stream.receive(bytes)
    pipe.send(time.process_time() - begun)
    server.close()


async def _receiving(port: int, files: TlsFiles | None, frames: int) -> float:
    """Receive all frames and return the CPU time in seconds."""
    context = TlsContexts(files).outgoing if files else None
    _, stream = await asyncio.get_running_loop().create_connection(
        lambda: FrameStream(keep=8 * 1024 * 1024), "127.0.0.1", port, ssl=context
    )
    request = build_msg(encode({"getMore": 1}), request_id=1)
    stream.write(request)
    begun = time.process_time()
    for _ in range(frames):
        await stream.receive(bytes)
        stream.write(request)
    used = time.process_time() - begun
    stream.abort()
    return used


def main() -> None:
    """Measure the steps that the command line names; all of them without a name."""
    steps = {step.__name__: step for step in (reply, merge, tls)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="step", help=f"one of {', '.join(steps)}")
    for name in parser.parse_args().steps or steps:
        steps[name]()


if __name__ == "__main__":
    main()
