"""An exception at any line between a shard's block and a client's reply loses no event.

The lines that a run executes are recorded first; then each of them raises once. A client gets an
error that is resumable, or none at all; with what it resumes from its last token it has each event
once and in order.
"""

import asyncio
import decimal
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import bson
from structlog.testing import capture_logs

from router.cursors.registry import CursorRegistry
from router.request.stream_request import StreamRequest
from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, numbers, start_cluster
from tests.harness.until import PATIENCE
from tests.simulation.moves import Moves, frequent_moves
from tests.simulation.planted import Planted, tracing
from tests.unit.router.stream.narrow_clients import FROM_100, watch, with_namespaces, write

_SECONDS = range(101, 113)

_RUNS = 30
"""The number of runs that share the lines."""


_LAST = frozenset(
    {"__init__", "guarded", "_fail_opening", "_stop_if_broken", "clear", "close", "fail"}
    | {"stop_reading"}
)
"""Functions that end what an exception has interrupted: a second one there would end nothing."""


@dataclass
class Watcher:
    """A client that resumes after errors, as drivers do."""

    registry: CursorRegistry
    target: str | int
    match: dict[str, Any]
    batch_size: int | None
    got: list[int] = field(default_factory=list)
    token: dict[str, Any] | None = None

    def request(self) -> StreamRequest:
        options = FROM_100 if self.token is None else {"resumeAfter": self.token}
        stages = [{"$match": self.match}] if self.match else []
        return watch(self.target, *stages, options=options)

    async def read(self, last: int) -> None:
        """Read up to the event ``last``."""
        while not self.got or self.got[-1] < last:
            try:
                cursor, first = await self.registry.open(self.request(), OWNER)
            except (CommandError, decimal.Inexact):
                continue  # the opening is refused, which loses nothing
            self.token = bson.decode(first.pbrt)
            try:
                while not self.got or self.got[-1] < last:
                    with self.registry.checkout(cursor.cursor_id, OWNER):
                        batch = await cursor.next_batch(self.batch_size, 0.02)
                    self.got += numbers(batch)
                    self.token = bson.decode(batch.pbrt)
            except CommandError as error:
                if RESUMABLE_LABEL not in error.labels:
                    raise
            with suppress(decimal.Inexact):  # at the end of a cursor nothing is left to lose
                self.registry.kill([cursor.cursor_id])


async def run(planted: Planted) -> Moves:
    cluster: ScriptedCluster = with_namespaces(await start_cluster())
    registry = cluster.registry(
        share_filters_from=1, share_scopes_from=1, share_linger=0.0, share_behind=1000.0
    )
    plain = Watcher(registry, 1, {}, 2)
    tenants = [Watcher(registry, 1, {"fullDocument.tenant": each}, each) for each in (1, 2)]
    part = Watcher(registry, "a", {}, None)
    everybody = [plain, *tenants, part]
    expected = [
        list(_SECONDS),
        *([each for each in _SECONDS if each % 3 == tenant] for tenant in (1, 2)),
        [each for each in _SECONDS if each % 2 == 0],
    ]
    try:
        moving = frequent_moves({}, 0.3, Random("moves"))
        with capture_logs(), moving as moves, tracing(planted):  # tracebacks take seconds to render
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                for watcher, wanted in zip(everybody, expected, strict=True):
                    group.create_task(watcher.read(wanted[-1]))
                for second in _SECONDS:
                    write(cluster, second, "ab"[second % 2], tenant=second % 3)
                    if second % 4 == 0:
                        await asyncio.sleep(0.01)
    finally:
        await cluster.close()
    for watcher, wanted in zip(everybody, expected, strict=True):
        assert watcher.got == wanted, (watcher.target, watcher.match, planted.raised)
    return moves


async def test_an_exception_at_any_line_loses_no_event() -> None:
    recorded = Planted({}, left_out=_LAST)
    moves = [await run(recorded)]
    lines = list(recorded.seen)
    assert len(lines) > 1000
    raised = 0
    for first in range(_RUNS):
        errors = {line: (decimal.Inexact(f"planted at {line}"), 1) for line in lines[first::_RUNS]}
        planted = Planted(errors, left_out=_LAST)
        moves.append(await run(planted))
        raised += len(planted.raised)
    assert any(each.to_shared for each in moves)
    assert any(each.to_own for each in moves)
    # An exception may keep lines of the same run from being executed.
    assert raised > len(lines) / 2
