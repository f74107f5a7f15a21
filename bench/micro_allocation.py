"""Savings of the settings in router.memory: split batches, hold them, build replies.

Run: .venv/bin/python -m bench.micro_allocation [--held 4]
"""

import argparse
import multiprocessing
import resource
import time

from bench.events import event
from router.commands.answer import build_cursor_reply
from router.memory import collect_less_often, keep_freed_memory
from shard_client.remote_cursor.cursor_reply import (
    CursorBatch,
)
from shard_client.wire.frames import msg_header, reply_body

BATCH_BYTES = 1024 * 1024
BATCHES = 400


def reply(events: list[bytes]) -> bytes:
    """Return a getMore's reply with these events, as one frame."""
    parts = build_cursor_reply(
        "nextBatch", cursor_id=1, namespace="bench.events", events=events, pbrt=b""
    )
    return b"".join((msg_header(int.from_bytes(parts[0][:4], "little"), 1, 2), *parts))


def measure(size: int, held: int, tuned: bool) -> tuple[float, float]:
    """Return CPU microseconds and page faults per event; call it in a new process.

    Args:
        size: bytes of an event.
        held: how many batches are held before replies are built from them.
        tuned: whether to apply the settings of router.memory.
    """
    count = BATCH_BYTES // size
    frame = memoryview(reply([event(number, size) for number in range(count)]))
    if tuned:
        keep_freed_memory()
        collect_less_often()
    batches: list[CursorBatch] = []
    body = sent = b""
    used = faults = 0.0
    for number in range(BATCHES + BATCHES // 10):
        if number == BATCHES // 10:
            used, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        body = reply_body(frame)
        batches.append(CursorBatch.of(body))
        batches[-1].split()
        if len(batches) == held:
            for batch in batches:
                sent = reply([raw for _, raw in batch.events])
            batches.clear()
    used = time.process_time() - used
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert len(body) < len(sent)  # both buffers stay alive to the end, as in a connection
    return used / BATCHES / count * 1e6, faults / BATCHES / count


def main() -> None:
    """Measure two sizes of events with and without the settings, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held", type=int, default=4)
    args = parser.parse_args()
    print("an event               us of CPU   page faults")
    context = multiprocessing.get_context("spawn")
    for size in (600, 2048):
        for tuned in (False, True):
            with context.Pool(1) as pool:
                used, faults = pool.apply(measure, (size, args.held, tuned))
            print(f"{size:5} B, {'tuned' if tuned else 'as is'}     {used:8.3f}  {faults:12.4f}")


if __name__ == "__main__":
    main()
