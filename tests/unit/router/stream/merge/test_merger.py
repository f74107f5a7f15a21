from collections.abc import Sequence

import pytest
from bson.timestamp import Timestamp

from router.limits.memory import weight
from router.stream.merge.merger import BLOCK_EVENTS, MergeInput, MergeOrderError, Merger
from shard_client.remote_cursor.cursor_reply import KeyedToken


def key(number: int) -> bytes:
    return b"%06d" % number


def merger(remotes: int) -> Merger:
    made = Merger()
    for _ in range(remotes):
        made.add_remote(remote())
    return made


def remote(*, topology: bool = False) -> MergeInput:
    return MergeInput("", "", Timestamp(1, 1), topology=topology)


def event(number: int, remote: int, filler: bytes = b"") -> tuple[bytes, bytes]:
    """Return a sort key and an event that encodes the key and its remote."""
    return key(number), b"%d:%d:" % (number, remote) + filler


def arrive(
    made: Merger,
    remote: int,
    events: list[tuple[bytes, bytes]],
    watermark: bytes,
    token: bytes = b"token",
) -> None:
    size = sum(len(raw) for _, raw in events)
    made.add_batch(remote, events, KeyedToken(watermark, token), size)


def released(made: Merger) -> list[bytes]:
    events: list[bytes] = []
    while (block := made.next_block()) is not None:
        assert block.events
        assert block.size == sum(map(len, block.events))
        assert sum(block.shares.values()) == weight(len(block.events), block.size)
        events += block.events
    return events


def add(made: Merger, remote: int, numbers: Sequence[int], watermark: int) -> None:
    arrive(made, remote, [event(n, remote) for n in numbers], key(watermark), b"p%d" % watermark)


@pytest.mark.parametrize("remotes", [1, 3, 16])
@pytest.mark.parametrize("batch", [10, 700, 5000])
def test_block_sizes_do_not_depend_on_remotes_and_batches(remotes, batch):
    made = merger(remotes)
    each = 10_000 // remotes
    for remote in range(remotes):
        for start in range(0, each, batch):
            numbers = range(start, min(each, start + batch))
            filler = b"x" * (250_000 // batch)
            arrive(made, remote, [event(n, remote, filler) for n in numbers], key(numbers[-1]))
    sizes = []
    while (block := made.next_block()) is not None:
        sizes.append(len(block.events))
    assert {made.buffered, *(one.buffered for one in made.remotes.values())} == {0}
    assert sum(sizes) == remotes * each
    assert max(sizes) <= BLOCK_EVENTS + remotes
    assert min(sizes[:-1]) >= BLOCK_EVENTS - remotes


@pytest.mark.parametrize(
    ("numbers", "watermark", "message"),
    [
        ([], 4, "went back"),
        ([4], 7, "came after the watermark"),
        ([6, 8], 7, "above its watermark"),
        ([7, 6], 7, "not in the order"),
    ],
)
def test_broken_watermarks_are_errors_without_effect(numbers, watermark, message):
    made = merger(1)
    add(made, 0, [], 5)
    with pytest.raises(MergeOrderError, match=message):
        add(made, 0, numbers, watermark)
    assert (made.low_watermark, made.remotes[0].buffered, made.ready) == (key(5), 0, False)


def test_only_an_advanced_watermark_without_events_is_the_high_water_mark():
    """Of the config server: docs/protocol.md#sharded-cluster."""
    made = Merger()
    made.add_remote(remote(topology=True))
    made.add_remote(remote())
    add(made, 1, [], 99)
    add(made, 0, [], 6)
    for numbers, watermark, mark in (([], 7, b"p7"), ([8], 8, None), ([], 8, None), ([], 9, b"p9")):
        add(made, 0, numbers, watermark)
        assert (made.high_water_mark and made.high_water_mark.token) == mark


def test_remotes_behind_a_key_are_listed():
    made = merger(4)
    for remote, watermark in ((0, 5), (1, 3), (2, 9)):
        add(made, remote, [], watermark)
    assert made.remotes_below(key(9)) == [1, 0]
    assert made.remotes_below(key(3)) == []
    assert made.remotes_at(key(9)) == [2]
    add(made, 3, [4], 9)
    assert made.last_key == key(4)
    assert made.remotes_at(key(9)) == [2, 3]


def test_released_events_are_freed_even_if_a_remote_stays_ahead():
    made = merger(2)
    for n in range(1, 300):
        add(made, 0, [2 * n, 2 * n + 1], 2 * n + 1)
        add(made, 1, [], 2 * n)
        released(made)
    # Only the internals show what is still referenced.
    held = sum(len(run.events) for run in made.remotes[0].runs)
    assert held <= 4
