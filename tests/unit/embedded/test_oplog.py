"""The oplog: order, bounds, reading while it grows, waiting; and its clock."""

import asyncio

import pytest
from bson import Timestamp

from embedded.logical_clock import LogicalClock
from embedded.oplog import Oplog, OplogEntry


def entry(number: int, size: int = 0) -> OplogEntry:
    return {"op": "n", "ns": "", "o": {"x": "y" * size}, "ts": Timestamp(1, number)}


def numbers(entries: object) -> list[int]:
    return [each["ts"].inc for each in entries]


def test_entries_after_a_point_are_in_order() -> None:
    oplog = Oplog()
    for number in range(1, 6):
        oplog.append(entry(number))
    assert numbers(oplog.since(Timestamp(1, 3))) == [4, 5]
    assert numbers(oplog.since(Timestamp(1, 3), inclusive=True)) == [3, 4, 5]
    assert (oplog.first_ts, oplog.last_ts) == (Timestamp(1, 1), Timestamp(1, 5))
    assert oplog.at(Timestamp(1, 4)) is not None
    assert oplog.at(Timestamp(2, 4)) is None


def test_an_entry_must_be_newer_than_the_last() -> None:
    oplog = Oplog()
    oplog.append(entry(2))
    for number in (1, 2):
        with pytest.raises(ValueError, match="not newer"):
            oplog.append(entry(number))


def test_the_oldest_entries_are_removed_and_missed() -> None:
    oplog = Oplog(max_entries=16)
    for number in range(1, 101):
        oplog.append(entry(number))
    assert len(oplog) <= 18
    assert oplog.last_ts == Timestamp(1, 100)
    assert oplog.first_ts is not None
    assert oplog.truncated_through == Timestamp(1, oplog.first_ts.inc - 1)


def test_bytes_are_bounded_but_one_entry_is_always_kept() -> None:
    oplog = Oplog(max_bytes=10_000)
    for number in range(1, 51):
        oplog.append(entry(number, size=1_000))
    assert 8 <= len(oplog) <= 11
    oplog.append(entry(60, size=50_000))
    assert len(oplog) == 1


def test_a_reader_continues_while_entries_are_added_and_removed() -> None:
    oplog = Oplog(max_entries=8)
    for number in range(1, 9):
        oplog.append(entry(number))
    reader = oplog.since(Timestamp(1, 0))
    assert next(reader)["ts"].inc == 1
    for number in range(9, 13):
        oplog.append(entry(number))
    rest = numbers(reader)
    assert rest == sorted(rest)
    assert rest[-1] == 12


async def test_waiting_ends_with_an_entry_or_a_timeout() -> None:
    oplog = Oplog()
    oplog.append(entry(1))
    assert await oplog.wait_beyond(Timestamp(1, 0), 10)
    assert not await oplog.wait_beyond(Timestamp(1, 1), 0.01)
    waiting = [asyncio.create_task(oplog.wait_beyond(Timestamp(1, 1), 10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    oplog.append(entry(2))
    assert await asyncio.gather(*waiting[1:]) == [True, True]


def test_the_clock_only_grows_and_follows_wall_time_and_peers() -> None:
    wall = 100.0
    clock = LogicalClock(lambda: wall)
    seen = [clock.tick() for _ in range(3)]
    assert seen == [Timestamp(100, 2), Timestamp(100, 3), Timestamp(100, 4)]
    clock.advance(Timestamp(100, 50))
    clock.advance(Timestamp(99, 99))
    assert clock.tick() == Timestamp(100, 51)
    wall = 101.5
    assert clock.tick() == Timestamp(101, 1)
    wall = 50.0
    assert clock.tick() == Timestamp(101, 2)
    assert clock.time == Timestamp(101, 2)
