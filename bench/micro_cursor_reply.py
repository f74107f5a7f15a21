"""Splitting a shard's reply and building a client's: CPU per event, without any socket.

Run: .venv/bin/python -m bench.micro_cursor_reply [--batch-bytes 1048576]

The garbage collector runs, and batches are held for a while as the merge holds them, so that memory
is allocated and freed as in the router.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable

import bson

from bench.events import event
from router.commands.answer import build_cursor_reply
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.wire.bson_slices import find
from shard_client.wire.frames import msg_header

ROUNDS = 15
HELD = 8


def best(action: Callable[[], object], repeat: int, per: int) -> float:
    """Return the CPU microseconds per event in the fastest of ROUNDS rounds.

    Each round calls ``action`` ``repeat`` times; each call handles ``per`` events.
    """
    held: deque[object] = deque(maxlen=HELD)
    quickest = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(repeat):
            held.append(action())
        quickest = min(quickest, time.process_time() - begin)
    return quickest / repeat / per * 1e6


def measure(size: int, count: int) -> tuple[float, float, float]:
    """Return the microseconds per event for splitting, for building parts, and for joining them."""
    events = [event(number, size) for number in range(count)]
    last = find(events[-1], b"_id")
    assert last is not None
    token = events[-1][last.start : last.end]

    def build() -> list[bytes]:
        parts = build_cursor_reply(
            "nextBatch",
            cursor_id=7,
            namespace="bench.events",
            events=events,
            pbrt=token,
            size=sum(map(len, events)),
        )
        return [msg_header(int.from_bytes(parts[0][:4], "little"), 1, 2), *parts]

    def slice_body() -> CursorBatch:
        batch = CursorBatch.of(body)
        batch.split()
        return batch

    parts = build()
    body = b"".join(parts)[21:]
    assert len(bson.decode(body)["cursor"]["nextBatch"]) == count
    repeat = max(1, 20_000 // count)
    split = best(slice_body, repeat, count)
    built = best(build, repeat, count)
    joined = best(lambda: b"".join(parts), repeat, count)
    return split, built, joined


def main() -> None:
    """Measure several sizes of events and batches, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-bytes", type=int, default=1024 * 1024)
    args = parser.parse_args()
    print("us of CPU an event      split   build    join")
    for size in (600, 2048):
        for count in (1, 100, args.batch_bytes // size):
            figures = "".join(f"{figure:8.3f}" for figure in measure(size, count))
            print(f"{size:5} B, {count:5} a batch {figures}")


if __name__ == "__main__":
    main()
