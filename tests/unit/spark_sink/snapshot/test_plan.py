"""How a snapshot is planned: places in offsets, and tasks of a batch, by servers that are stubs."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Self

import bson
import pytest
from bson import Binary, Code, DBRef, MaxKey, MinKey
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import SnapshotOptions
from spark_sink.snapshot.chunk_planner import CHUNK_BYTES, ChunkPlanner, _bound, _kind
from spark_sink.snapshot.plan import Chunk, Mark, SnapshotPlan, bound_text, value_of
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.scheduler import SnapshotScheduler
from spark_sink.source.offsets import Offset

MARK = Timestamp(100, 1)
_MILLION = 10**6


@pytest.mark.parametrize(
    "value",
    [
        *(1, Int64(1), 1.5, Decimal128("1.50"), ObjectId(), "a\0b", b"x", True, None),
        *(DatetimeMS(0), DatetimeMS(10**15), DatetimeMS(-(10**15)), {"at": DatetimeMS(2**62)}),
    ],
)
def test_a_bound_is_the_same_value_in_the_checkpoint(value: Any) -> None:
    assert bson.encode({"": value_of(bound_text(value))}) == bson.encode({"": value})


def _same_kind(*values: Any) -> bool:
    return len(set(map(_kind, values))) == 1


def test_bounds_have_an_order_and_one_type() -> None:
    assert _same_kind(1, Int64(1), 1.5, Decimal128("1.50"))
    assert _same_kind("a", "b")
    assert _same_kind(b"x", Binary(b"x", 5))
    for one, other in (
        *((1.5, float("nan")), (1, Decimal128("NaN")), (1, True), ("a", b"a"), (1, None)),
        *((Code("x"), Code("x", {"n": 1})), (Timestamp(1, 1), DatetimeMS(1)), (MinKey(), MaxKey())),
    ):
        assert not _same_kind(one, other)
    long, emoji = "x" * 90 + "12345678901234567890", "\U0001f600" * 200
    assert _bound(long, cut=True) == bound_text(long[:100])
    assert _bound(long, cut=False) == bound_text(long)
    assert _bound(emoji, cut=True) == bound_text(emoji[:50])
    for value in ("\ufffd", {"a": {"$oid": "no"}}, DBRef("c", 1, a="x" * 999), {"a": "x" * 999}):
        assert _bound(value, cut=False) is None


@dataclass(frozen=True)
class Stub:
    """A collection of documents 0, 1, 2, …; `key` makes their `_id`s, and `number` takes it back.

    The documents before number `large` have `size` bytes, the others 20 times as many.
    """

    count: int
    key: Callable[[int], Any] = int
    number: Callable[[Any], int] = int
    large: int = 10**12
    size: int = 450

    def bytes_in(self, lower: int, upper: int) -> int:
        small, large = min(upper, self.large) - min(lower, self.large), max(upper, self.large)
        return self.size * (small + 20 * (large - max(lower, self.large)))

    def bytes_of(self, chunk: Chunk) -> int:
        bounds = (None if each is None else value_of(each) for each in (chunk.lower, chunk.upper))
        lower, upper = (None if each is None else self.number(each) for each in bounds)
        return self.bytes_in(lower or 0, self.count if upper is None else upper)


@dataclass
class Servers:
    """Replaces a pymongo client: servers with these collections of the database d."""

    stubs: dict[str, Stub]
    stats: bool = True
    failures: list[int] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    name: str = ""

    def __getitem__(self, name: str) -> Self:
        self.name = name
        return self

    @property
    def config(self) -> Self:
        return self

    collections = config

    def find(self, _: Any) -> list[Any]:
        return []

    def list_collections(self, filter: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: A002
        asked = [each["name"] for each in filter.get("$or", ()) if "name" in each]
        for name in asked or self.stubs:
            yield {"name": name, "info": {"uuid": name.rjust(16).encode()}}

    def command(self, name: str, collection: str) -> dict[str, Any]:
        if not self.stats:
            raise OperationFailure("not allowed", 13)
        stub = self.stubs[collection]
        return {"count": stub.count, "size": stub.bytes_in(0, stub.count)}

    def estimated_document_count(self) -> int:
        return self.stubs[self.name].count

    def aggregate(self, stages: list[dict[str, Any]], **_: Any) -> Iterator[dict[str, Any]]:
        if self.failures:
            raise OperationFailure("sporadic", self.failures.pop())
        stub = self.stubs[self.name]
        lower, upper = 0, stub.count
        found: list[int] | None = None
        for stage in stages:
            if "$sample" in stage:
                size = min(stage["$sample"]["size"], upper - lower)
                found = [self.chance.randrange(lower, upper) for _ in range(size)]
            if "$match" in stage:
                below = stage["$match"]["_id"]
                wanted = below.get("$not", {}).get("$gte", below.get("$lt"))
                lower = stub.number(below["$gte"]) if "$gte" in below else 0
                upper = stub.count if wanted is None else stub.number(wanted)
                found = found and [each for each in found if lower <= each < upper]
        for each in sorted(found or ()):
            yield {"_id": stub.key(each), "size": stub.bytes_in(each, each + 1)}


def written(plan: SnapshotPlan) -> SnapshotPlan:
    """Return a plan as an offset of the checkpoint restores it, which has at most 4 KiB."""
    text = json.dumps(Offset(plan.handover, snapshots=in_snapshot(plan)).document)
    assert len(text) <= 4096
    restored = Offset.of(json.loads(text)).snapshots.initial_plan
    assert restored == plan
    return plan


def in_snapshot(plan: SnapshotPlan) -> SnapshotQueue:
    """Return the state of a query within its initial snapshot."""
    return SnapshotQueue(requests=(SnapshotRequest("i", "initial", plan=plan),))


def batches(planner: ChunkPlanner, most: int = 10**9) -> Iterator[list[list[Chunk]]]:
    """Yield the tasks of each batch of a snapshot; all offsets are small."""
    snapshots = SnapshotScheduler(planner)
    signals = snapshots.begin(SnapshotQueue(), MARK)
    for _ in range(most):
        signals = snapshots.advance(signals, MARK)
        if (plan := signals.initial_plan) is None:
            return
        assert len(json.dumps(Offset(plan.handover, snapshots=signals).document)) <= 4096
        signals = signals.without_batch()
        yield planner.tasks(written(plan))


def sizes(servers: Servers, tasks: list[list[Chunk]]) -> list[float]:
    """Return the bytes of tasks; a collection counts 10 KiB more."""
    return [
        sum(servers.stubs[c.collection.name].bytes_of(c) + 10240 for c in task) for task in tasks
    ]


def test_a_rest_without_a_sample_is_read() -> None:
    """After a restart close to the end, a sample may have no key after the place."""
    servers = Servers({"c": Stub(_MILLION)})
    planner = ChunkPlanner(servers, Scope("d"), SnapshotOptions(tasks=4))  # type: ignore[arg-type]
    [collection] = planner.collections()
    rest = Mark(collection.id, bound_text(_MILLION - 1))
    plan = planner.next_batch(SnapshotPlan(MARK, end=rest))
    assert planner.tasks(plan) == [[Chunk(collection, rest.key)]]
    assert not plan.ended
    assert planner.next_batch(plan).ended


def test_without_the_right_to_statistics_the_documents_are_counted() -> None:
    servers = Servers({"c": Stub(2 * _MILLION)}, stats=False)
    tasks = next(batches(ChunkPlanner(servers, Scope("d"), SnapshotOptions(tasks=8))))  # type: ignore[arg-type]
    assert len(tasks) == 8
    assert max(sizes(servers, tasks)) <= 2 * median(sizes(servers, tasks))


def test_a_sample_that_fails_by_chance_is_taken_again() -> None:
    servers = Servers({"c": Stub(2 * _MILLION)}, failures=[28799, 28799])
    tasks = next(batches(ChunkPlanner(servers, Scope("d"), SnapshotOptions(tasks=8))))  # type: ignore[arg-type]
    assert len(tasks) == 8
    servers.failures = [28799] * 99
    with pytest.raises(OperationFailure):
        next(batches(ChunkPlanner(servers, Scope("d"), SnapshotOptions(tasks=8))))  # type: ignore[arg-type]


def test_ten_thousand_million_documents_need_no_plan_of_all() -> None:
    stub = Stub(10**10, lambda n: ObjectId(f"{n:024x}"), lambda key: int(str(key), 16))
    servers = Servers({"c": stub})
    for cores, number in ((2, 2), (1000, 1)):
        planner = ChunkPlanner(servers, Scope("d"), SnapshotOptions(tasks=2 * cores))  # type: ignore[arg-type]
        for tasks in batches(planner, number):
            assert len(tasks) >= 2 * cores * 0.9
            assert max(sizes(servers, tasks)) <= 2 * CHUNK_BYTES
    kept = sum(map(len, planner._sampled.values()))
    assert kept <= 200_000


@pytest.mark.parametrize(
    ("collections", "cores"),
    [
        ({"one": Stub(50_000)}, 2),
        ({"one": Stub(50 * _MILLION)}, 16),
        ({"one": Stub(20 * _MILLION, large=18 * _MILLION, size=100)}, 4),
        ({f"c{number:05}": Stub(number % 7 * 20) for number in range(10_000)}, 8),
        ({"a": Stub(10), "b": Stub(30 * _MILLION), "c": Stub(2000), "d": Stub(_MILLION)}, 4),
        (
            {
                "one": Stub(
                    2 * _MILLION, lambda n: f"{'ä' * 90}{n:09}" * 9, lambda key: int(key[90:99])
                )
            },
            4,
        ),
    ],
    ids=["small", "large", "larger", "many", "mixed", "long-keys"],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_no_batch_waits_for_one_task(
    collections: dict[str, Stub], cores: int, restarts: bool
) -> None:
    servers = Servers(collections)

    def planner() -> ChunkPlanner:
        return ChunkPlanner(servers, Scope("d"), SnapshotOptions(tasks=2 * cores))  # type: ignore[arg-type]

    planning, reading = planner(), planner()
    plan, read, number = planning.begin(MARK), [], 0
    while not (plan := written(planning.next_batch(plan))).ended:
        tasks = (reading if restarts else planning).tasks(plan)
        read += [chunk for task in tasks for chunk in task]
        found = sizes(servers, tasks)
        if plan.end is not None or not number:
            assert len(tasks) >= 2 * cores * 0.9
            assert max(found) <= 2 * median(found)
        number += 1
        if restarts and number % 3 == 0:
            planning, reading = planner(), planner()
    by_name: dict[str, list[Chunk]] = {}
    for chunk in read:
        by_name.setdefault(chunk.collection.name, []).append(chunk)
    assert by_name.keys() == collections.keys()
    for chunks in by_name.values():
        assert (chunks[0].lower, chunks[-1].upper) == (None, None)
        assert all(one.upper == other.lower is not None for one, other in pairwise(chunks))
