"""The ways of a batch and of an opening through the router, traced, against the design page."""

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bson import Timestamp

from router.config.settings import Settings
from router.service import assemble
from tests.doubles.replay import EventTape, PreparedEvents, ReplayMember
from tests.harness.raw_client import RawClient
from tests.unit.router.made_tokens import data_of, event

ROOT = Path(__file__).parents[2]
EVENTS, FILLER = 1000, "x" * 1000
PART = 50
"""A value with so many events is a batch; nothing else is as large."""
START, END = (f"82{time:08X}000000012B0229296E04" for time in (5, 1_000_000))
BSON_READER = "shard_client/wire/bson_slices.py"
_MOST_HOPS, _MOST_WRAPPERS, _MOST_STEPS = 20, 5, 12
STAGE = {"$changeStream": {"startAtOperationTime": Timestamp(6, 1)}}
OPENING = {"aggregate": 1, "pipeline": [STAGE], "cursor": {}}


class Trace:
    """The hops of a batch: functions that get it from another module, or hand it to one.

    A function in another module than its caller's that is called with the batch or returns it, as
    bytes, as a list of events, or in an object. The reader of BSON fields does not count, like a
    library's. ``wrappers`` are the classes of these objects.
    """

    def __init__(self) -> None:
        self.hops: set[tuple[str, str]] = set()
        self.wrappers: set[str] = set()

    def __call__(self, frame: FrameType, what: str, result: Any) -> None:
        path, caller = _path(frame), _path(frame.f_back)
        if path is None or what not in ("call", "return"):
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        passed = [frame.f_locals.get(name) for name in names if name != "self"]
        if what == "return":
            passed = [result, frame.f_locals.get("self") if code.co_name == "__init__" else None]
        self.wrappers |= {type(each).__name__ for each in passed if _wraps(each)}
        if caller not in (None, path) and path != BSON_READER and any(map(_is_batch, passed)):
            self.hops.add((path, code.co_qualname))


def _path(frame: FrameType | None) -> str | None:
    """The path of a function's module in the router or the shard client; None for others."""
    if frame is None:
        return None
    path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    return path if path.startswith(("router/", "shard_client/")) else None


def _is_batch(value: object) -> bool:
    return _holds(value) or _wraps(value) or (type(value) is tuple and any(map(_holds, value)))


def _holds(value: object) -> bool:
    """Whether a value is a batch's bytes, or a list of its events."""
    if isinstance(value, bytes | memoryview):
        return len(value) > PART * len(FILLER)
    return isinstance(value, list) and len(value) > PART and isinstance(value[-1], bytes | tuple)


def _wraps(value: object) -> bool:
    """Whether the batch is in a field of an object of the router."""
    kind = type(value)
    if not kind.__module__.startswith(("router.", "shard_client.")):
        return False
    names = getattr(kind, "__slots__", None) or getattr(kind, "_fields", ())
    return any(_holds(getattr(value, name, None)) for name in names)


def table(heading: str) -> list[list[str]]:
    """The names in the last column of the table below a heading of the design page."""
    page = (ROOT / "docs" / "design.md").read_text()
    lines = page.partition(f"### {heading}\n")[2].partition("\n#")[0].splitlines()
    rows = [line.rpartition(" | ")[2] for line in lines if line.startswith("| ")]
    return [re.findall(r"`([\w./]+)`", row) for row in rows[1:]]


def member(name: str, events: list[tuple[str, bytes]]) -> ReplayMember:
    prepared = PreparedEvents(events)
    return ReplayMember(name, lambda _: EventTape(7, "admin.$cmd.aggregate", START, prepared, END))


@asynccontextmanager
async def routed() -> AsyncIterator[RawClient]:
    """A client of a router on a cluster whose one shard replays a batch."""
    found = [data_of(10 + number, 1) for number in range(EVENTS)]
    shard = member("s0", [(each, event(each, filler=FILLER)[1]) for each in found])
    config = member("cfg", [])
    config.documents["shards"] = [{"_id": "s0", "host": await shard.start(), "state": 1}]
    settings = Settings.model_validate({"sharding": {"configDB": await config.start()}})
    async with assemble(settings, []) as (_, listener, _):
        port = await listener.listen(["127.0.0.1"], 0)
        async with await RawClient.connect(port) as connected:
            yield connected
    for each in (shard, config):
        await each.stop()


async def test_a_batch_takes_few_hops_all_of_them_in_the_table() -> None:
    trace, got = Trace(), 0
    async with routed() as client:
        sys.setprofile(trace)
        try:
            opened = await client.command("db", OPENING)
            more = {"getMore": opened["cursor"]["id"], "collection": "$cmd.aggregate"}
            while got < EVENTS:
                reply = await client.command("db", more)
                got += len(reply["cursor"]["nextBatch"])
        finally:
            sys.setprofile(None)
    named = {name for row in table("A batch's way from socket to socket") for name in row}
    assert {name for _, name in trace.hops} <= named
    assert len(trace.hops) <= _MOST_HOPS
    assert len(trace.wrappers) <= _MOST_WRAPPERS, trace.wrappers


async def test_an_opening_calls_each_function_of_its_table_once_and_in_order() -> None:
    rows = table("The way of an opening from `aggregate` to the cursor")
    steps = [(path, name) for name, path in rows]
    called: dict[FrameType, tuple[str | None, str]] = {}

    def trace(frame: FrameType, _what: str, _result: Any) -> None:
        step = (_path(frame), frame.f_code.co_qualname)
        if step in steps:
            called[frame] = step

    async with routed() as client:
        sys.setprofile(trace)
        try:
            await client.command("db", OPENING)
        finally:
            sys.setprofile(None)
    assert list(called.values()) == steps
    assert len(rows) <= _MOST_STEPS
    assert len({path for path, _ in steps}) == len(steps)
