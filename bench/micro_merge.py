"""The merge alone: CPU per event of add_batch and take, for several numbers of shards.

Run: .venv/bin/python -m bench.micro_merge [--events 400000] [--size 600] [--batch 1500]
"""

import argparse
import os
import time

from bson.timestamp import Timestamp

from router.merge.merged_stream import MergedStream
from router.request.stream_request import parse_request
from router.views.log_reader import LogReader
from router.views.starting_point import starting_point
from router.views.view import View
from shard_client.bson.resume_token import ResumeToken
from shard_client.remote_cursor.cursor_reply import CursorBatch, Watermark

START = Timestamp(1_700_000_000, 1)


def event(n: int, size: int) -> tuple[bytes, bytes]:
    """Return the sort key and BSON of event ``n``, about ``size`` bytes long.

    ``n`` determines the event's cluster time.
    """
    key = b"82%08X%08X2B022C0100296E5A1004%032X461E5F6964002B%04X0004" % (
        1_700_000_001 + n // 10_000,
        1 + n % 10_000,
        7,
        n & 0xFFFF,
    )
    token = b"\x02_data\x00" + (len(key) + 1).to_bytes(4, "little") + key + b"\x00\x00"
    token = (len(token) + 4).to_bytes(4, "little") + token
    body = b"\x03_id\x00" + token
    body += b"\x05x\x00" + (fill := size - len(body) - 13).to_bytes(4, "little")
    body += b"\x00" + os.urandom(fill) + b"\x00"
    return key, (len(body) + 4).to_bytes(4, "little") + body


def batches(shard: int, shards: int, args: argparse.Namespace) -> list[CursorBatch]:
    """Return one shard's events, cut into the batches that its cursor delivers."""
    events = [event(n, args.size) for n in range(shard, args.events, shards)]
    cut = [events[i : i + args.batch] for i in range(0, len(events), args.batch)]
    return [
        CursorBatch(7, part, Watermark.of(token(part)), sum(len(e) for _, e in part))
        for part in cut
    ]


def token(part: list[tuple[bytes, bytes]]) -> bytes:
    """Return the resume token of the last event as BSON."""
    last = part[-1][1]
    return last[9 : 9 + int.from_bytes(last[9:13], "little")]


def measure(shards: int, args: argparse.Namespace) -> tuple[float, float]:
    """Return the microseconds per event of add_batch and of take."""
    request = parse_request(
        "db",
        {
            "aggregate": "c",
            "pipeline": [{"$changeStream": {"startAtOperationTime": START}}],
            "cursor": {},
        },
    )
    stream = MergedStream(
        request,
        {f"shard{n}": "" for n in range(shards)},
        start_at=START,
        topology_from=START,
    )
    position = LogReader(View(stream), starting_point(request, START, 1))
    config, *remotes = stream.start()
    end = ResumeToken.high_water_mark(Timestamp(2_000_000_000, 1), 1).raw
    stream.batch_arrived(config.remote, CursorBatch(7, [], Watermark.of(end), 0))
    scripts = [batches(n, shards, args) for n in range(shards)]
    adding = taking = 0.0
    delivered = 0
    for part in zip(*scripts, strict=False):
        for opening, one in zip(remotes, part, strict=True):
            begin = time.process_time()
            stream.batch_arrived(opening.remote, one)
            adding += time.process_time() - begin
        begin = time.process_time()
        delivered += len(position.take(None).events)
        taking += time.process_time() - begin
    return 1e6 * adding / delivered, 1e6 * taking / delivered


def main() -> None:
    """Measure 1 to 16 shards and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=600)
    parser.add_argument("--batch", type=int, default=1_500)
    args = parser.parse_args()
    print(
        f"{args.events} events of {args.size} bytes, {args.batch} a batch; best of 3, us an event"
    )
    for shards in (1, 2, 4, 8, 16):
        add, take = min((measure(shards, args) for _ in range(3)), key=sum)
        print(f"{shards:3} shards: add {add:.3f}  take {take:.3f}  together {add + take:.3f}")


if __name__ == "__main__":
    main()
