"""Freed memory that malloc keeps is given back once it has grown."""

import asyncio

import pytest

from router import memory
from router.memory import Memory, keep_slack_small


async def test_freed_memory_is_given_back_while_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "LOOK", 0)
    monkeypatch.setattr(memory, "MOST_SLACK", 100)
    found = iter([1000, 1000, 1500, 1100, 1101, 900, 1000, 1001, 1001])
    held = iter([0, 0, 450, 0, 0, 0, 0, 0])
    given: list[int] = []
    whole = Memory(1)

    def resident() -> int:
        whole.held = next(held, 0)
        return next(found)

    monkeypatch.setattr(memory, "resident_bytes", resident)
    monkeypatch.setattr(memory, "give_back_freed_memory", lambda: given.append(whole.held))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.create_task(keep_slack_small(whole))
    assert len(given) == 3
