"""Signals: their fields, their channels and the snapshots that they cause, without Spark."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import bson
import pytest
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.events.positions import AtTime, EventRange, Position, key_of
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.plan import SnapshotCollection
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.scheduler import SnapshotScheduler
from spark_sink.snapshot.selections import MissingDocuments, ScopeGain
from spark_sink.snapshot.signal import ReceivedSignal, SignalError, digest, signal_of
from spark_sink.snapshot.signal_channels import SignalCollection
from spark_sink.snapshot.unread import LostDocument
from spark_sink.source.batch_planner import BatchPlanner, QueryOutput
from spark_sink.source.offsets import Offset
from tests.doubles.listed_collections import ListedCollections

MARK = Timestamp(100, 1)


def signal(kind: str = "execute-snapshot", **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": {name.replace("_", "-"): value for name, value in data.items()}}


def test_a_signal_has_debeziums_format() -> None:
    found = signal_of(
        "1",
        signal(
            type="BLOCKING",
            data_collections=['"shop"."orders"', "crm[.].*"],
            additional_conditions=[
                {"data-collection": "shop.orders", "filter": {"n": bson.DatetimeMS(1 << 50)}},
                {"data-collection": "crm[.]a.*", "filter": {"open": True}},
            ],
        ),
    )
    assert (found.kind, found.collections) == ("blocking", ("shop.orders", "crm[.].*"))
    assert found.conditions[0].document == {"n": bson.DatetimeMS(1 << 50)}
    assert found.conditions[1].matches("crm.accounts")
    assert not found.conditions[1].matches("crm.b")
    incremental = signal_of("2", signal(data_collections=["shop.orders"]))
    assert incremental.kind == "incremental"
    data = {"data_collections": ["a.*"], "additional_condition": '{"open": true}'}
    [condition] = signal_of("4", signal(**data)).conditions
    assert (condition.document, condition.matches("a.b")) == ({"open": True}, True)
    text = json.dumps({"data-collections": ["a.b"]})
    assert signal_of("3", {"type": "execute-snapshot", "data": text}).collections == ("a.b",)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "type must be one of"),
        ({"type": {"name": "log"}}, "type must be one of"),
        ({"type": "execute-snapshot"}, "name the collections to read"),
        (signal(data_collections="shop.orders"), "must be an array"),
        (signal(data_collections=["shop.(orders"]), "not a regular expression"),
        (signal(data_collections=["a.b"], type="full"), "incremental or blocking"),
        (signal(data_collections=["a.b"], additional_condition="x"), "filter is not JSON"),
        (signal(data_collections=["a.b"], condition="x"), "unknown field"),
        (signal("stop-snapshot", type="blocking"), "only incremental"),
        ({"type": "pause-snapshot", "data": 5}, "data must be a document"),
        ({"type": "log"}, "data.message must be a text"),
        *(
            (
                signal(
                    data_collections=["a.b"],
                    additional_conditions=[{"data-collection": "a.b", "filter": condition}],
                ),
                message,
            )
            for condition, message in [
                ("color='blue'", "filter is not JSON"),
                ('{"n": {"$numberDecimal": "five"}}', "filter is not JSON"),
                ('{"a":' * 600 + "1" + "}" * 600, "more than 100 levels"),
                ({"$or": [{"x": 1}, {"$where": "sleep(1)"}]}, "runs code"),
            ]
        ),
        (
            signal(data_collections=["a.b"], additional_conditions=[{"filter": {}}]),
            "has the fields",
        ),
    ],
)
def test_invalid_signals_are_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(SignalError, match=message):
        signal_of("1", document)


class Collections(ListedCollections):
    """A planner of collections a.x and a.y with four tasks each, and b.z; a batch has two tasks."""

    refused: str | None = None

    def __init__(self) -> None:
        super().__init__(("a.x", "a.y", "b.z"), Scope(), documents=40, tasks=4)

    def _list(self) -> None:
        super()._list()
        self._names["a.x"].add(("a", "x2"))  # it was renamed

    def problem(self, _collection: SnapshotCollection, condition: Any) -> str | None:
        if self.refused is not None:
            return self.refused
        return "no such operator" if condition and "$no" in condition else None


class Query:
    """The signals of a query by batch; each queue is written to an offset and read back."""

    def __init__(self) -> None:
        self.planner = Collections()
        self.snapshots = SnapshotScheduler(self.planner, ("a[.]x",), clock=lambda: 5.0)
        self.queue = SnapshotQueue()
        self.notified: list[tuple[str, str]] = []
        self.time = 100

    def batch(
        self,
        unread: Mapping[str, int] | None = None,
        lost: Sequence[tuple[str, int, int]] = (),
        *,
        is_first: bool = False,
        **signals: Any,
    ) -> list[str]:
        """Run a batch that takes these signals first; return the collections of its chunks.

        With `is_first` a start of the query begins. `unread` are collections of the database a that
        a table lacks, and since when. `lost` are names, numbers of documents, and since when.
        """
        received = [ReceivedSignal(name, document) for name, document in signals.items()]
        lacking = {
            ("a", name): high_water_mark(Timestamp(time, 1))
            for name, time in (unread or {}).items()
        }
        documents = [
            LostDocument("a", name, f'{{"$numberInt": "{n}"}}', high_water_mark(Timestamp(time, 1)))
            for name, n, time in lost
        ]
        queue = self.queue.without_batch()
        if is_first:
            queue = queue.restarted()
        queue = queue.requiring(lacking, documents)
        queue = self.snapshots.process(queue, received)
        self.time += 1
        queue = self.snapshots.advance(queue, Timestamp(self.time, 1))
        self.notified += [(each["id"], each["type"]) for each in queue.batch.notifications]
        offset = Offset(AtTime(MARK), snapshots=queue)
        assert Offset.of(json.loads(json.dumps(offset.document))) == offset
        self.queue = queue
        if queue.batch.reading is None:
            return []
        request = queue.running
        assert request is not None
        assert request.plan is not None
        tasks = self.planner.tasks(request.plan, request.selection)
        return [str(chunk.collection) for task in tasks for chunk in task]

    def take(self, identifier: str, document: dict[str, Any]) -> None:
        """Process a signal without a batch."""
        received = [ReceivedSignal(identifier, document)]
        self.queue = self.snapshots.process(self.queue, received)

    def ended(self) -> list[tuple[str, str]]:
        """Return the collections that a snapshot has read as a whole, which ends with the batch."""
        ended = self.queue.batch.ending
        assert ended is not None
        return sorted({*ended.selection.unread, *self.planner.names(ended.selection)})

    def rest(self) -> list[str]:
        """Run batches until no snapshot is left; return the collections of their chunks."""
        found: list[str] = []
        while self.queue.running is not None:
            found += self.batch()
        return found


def test_an_incremental_snapshot_goes_through_its_collections() -> None:
    query = Query()
    assert query.batch() == []
    assert query.batch(s=signal(data_collections=["A[.]\\p{Lower}+"])) == ["a.x", "a.x"]
    assert not any(each.blocks_stream for each in query.queue.requests)
    assert query.queue.batch.reading == Timestamp(102, 1)
    chunks = [query.batch() for _ in range(3)]
    assert chunks == [["a.x", "a.x"], ["a.y", "a.y"], ["a.y", "a.y"]]
    assert query.queue.batch.ending is None
    assert query.batch() == []
    # Rows of a renamed collection may have either name.
    assert query.ended() == [("a", "x"), ("a", "x2"), ("a", "y")]
    assert query.batch() == []
    assert not query.queue.batch.has_output
    kinds = [kind for _, kind in query.notified]
    assert kinds == [
        "STARTED", "IN_PROGRESS", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "IN_PROGRESS",
        "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED",
    ]  # fmt: skip


def test_a_signal_is_processed_once() -> None:
    query = Query()
    once = signal(data_collections=["b.z"])
    query.batch(s=once)
    assert query.batch(s=once, t=once) == ["b.z", "b.z"]
    assert query.rest() == ["b.z"] * 4
    assert query.batch(s=once, t=once) == []
    query.batch(bad=signal(data_collections=[]), **{"long" * 900: "the file is not JSON"})
    assert query.notified[-2:] == [("bad", "REFUSED"), ("long" * 150, "REFUSED")]
    told = len(query.notified)
    query.batch(bad=signal(data_collections=[]))
    assert len(query.notified) == told

    # No signal, and no request of the table, takes the place of a snapshot with its id.
    query.batch({"x": 7})
    query.take("again-7-1", once)
    later = {("a", "y"): high_water_mark(Timestamp(7, 1)) + "04"}
    query.queue = query.queue.requiring(later)
    assert [each.selection for each in query.queue.requests] == [
        MissingDocuments(("a.x",)),
        MissingDocuments(("a.y",)),
    ]
    assert [each["type"] for each in query.queue.batch.notifications][-1] == "REFUSED"


def test_the_last_ids_are_kept_and_those_that_may_come_again() -> None:
    queue = SnapshotQueue()
    for number in range(1500):
        queue = queue.with_handled("n" * 190 + str(number), {digest("n" * 190 + "7")})
    kept = [n for n in range(1500) if queue.has_handled("n" * 190 + str(n))]
    assert kept == [7, *range(1450, 1500)]
    assert len(json.dumps(Offset(AtTime(MARK), snapshots=queue).document)) < 2000


def test_requests_take_a_bounded_space() -> None:
    query = Query()
    long = {"data-collection": "a.x", "filter": {"x": "y" * 12_000}}
    for name in ("one", "two"):
        sent = signal(data_collections=["a.x"], additional_conditions=[long])
        query.take(name, sent)
    for number in range(60):
        query.take(f"n{number}", signal(data_collections=["a.y"]))
        query.take(f"s{number}", signal("stop-snapshot", data_collections=["z" * 999]))
    queue = query.queue
    assert len(queue.requests) <= 20
    assert queue.characters <= 20_000
    refused = [each["id"] for each in queue.batch.notifications if each["type"] == "REFUSED"]
    assert refused[0] == "two"
    assert len(refused) > 60


def test_a_snapshot_with_a_condition_ends_no_collection() -> None:
    query = Query()
    condition = {"data-collection": "a.x", "filter": {"n": 1}}
    query.batch(s=signal(data_collections=["a.*"], additional_conditions=[condition]))
    [request] = query.queue.requests
    assert request.selection.condition("a.x") == {"n": 1}
    assert request.selection.condition("a.y") is None
    while query.queue.batch.ending is None:
        query.batch()
    assert query.ended() == [("a", "y")]
    query.batch(t=signal(data_collections=["a.x"], additional_conditions=[condition]))
    query.rest()
    assert query.queue.batch.ending is None
    assert query.notified[-1] == ("t", "COMPLETED")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"data_collections": ["c.*"]}, "no collection of the query's scope"),
        (
            {
                "data_collections": ["a.x"],
                "additional_conditions": [{"data-collection": "a.y", "filter": {}}],
            },
            "no collection to read",
        ),
        (
            {
                "data_collections": ["a.x"],
                "additional_conditions": [{"data-collection": "a.x", "filter": {"$no": 1}}],
            },
            "no such operator",
        ),
    ],
)
def test_a_snapshot_that_cannot_be_read_is_aborted(data: dict[str, Any], reason: str) -> None:
    query = Query()
    assert query.batch(s=signal(**data), t=signal(data_collections=["b.z"])) == ["b.z"] * 2
    [aborted] = [each for each in query.queue.batch.notifications if each["type"] == "ABORTED"]
    assert reason in aborted["additional_data"]["reason"]
    assert [each.id for each in query.queue.requests] == ["t"]


def test_a_query_with_a_filtering_pipeline_refuses_snapshots() -> None:
    snapshots = SnapshotScheduler(Collections(), (), "no snapshotFilters")
    queue = snapshots.process(
        SnapshotQueue(), [ReceivedSignal("s", signal(data_collections=["a.x"]))]
    )
    assert queue.requests == ()
    assert queue.batch.notifications[0]["additional_data"] == {"reason": "no snapshotFilters"}


def test_a_snapshot_is_stopped_partly_or_completely() -> None:
    query = Query()
    query.batch(s=signal(data_collections=["a.*", "b.*"]), t=signal(data_collections=["b.z"]))
    left = query.batch(u=signal("stop-snapshot", type="incremental", data_collections=["a[.]x"]))
    assert left == ["a.y", "a.y"]
    aborted = query.queue.batch.notifications[0]["additional_data"]
    assert aborted == {"signal": "u", "data_collections": "a.x"}
    query.take("n", signal("stop-snapshot", data_collections=["a.x"]))
    query.take("z", signal("stop-snapshot", data_collections=["b.z"]))
    query.planner.present.append(["b", "new"])
    query.take("o", signal(data_collections=["b.new"]))
    query.take("p", signal("stop-snapshot", data_collections=["b.new"]))
    assert [each.id for each in query.queue.requests] == ["s"]
    told = [(each["id"], each["type"]) for each in query.queue.batch.notifications]
    assert told[-5:-2] == [("n", "REFUSED"), ("s", "ABORTED"), ("t", "ABORTED")]
    assert told[-2:] == [("s", "ABORTED"), ("o", "ABORTED")]
    assert query.batch(v=signal("stop-snapshot", type="incremental")) == []
    assert query.queue.requests == ()
    assert query.queue.batch.ending is None
    query.batch(w=signal("stop-snapshot"))
    assert query.notified[-1] == ("w", "REFUSED")


def test_collections_that_a_table_lacks_are_requested_once() -> None:
    query = Query()
    assert query.batch({"x": 7}) == ["a.x", "a.x"]
    assert query.batch({"x": 7}, stop=signal("stop-snapshot")) == ["a.x", "a.x"]
    assert query.batch({"x": 7, "y": 8, "gone": 9}) == []
    assert query.ended() == [("a", "x"), ("a", "x2")]
    assert query.batch({"y": 8, "gone": 9}, block=signal(data_collections=["b.z"])) == ["a.y"] * 2
    query.batch({"y": 8, "gone": 9, "x": 10})
    query.batch({"y": 8, "gone": 9, "x": 10, "none": 11})
    ids = [each.id for each in query.queue.requests if each.is_required]
    assert ids == ["again-10-1"]  # two that have not begun become one
    assert set(query.rest()) == {"a.x", "b.z"}
    assert [each for each in query.notified if each[1] in ("STARTED", "COMPLETED", "REFUSED")] == [
        ("again-7-1", "STARTED"), ("stop", "REFUSED"), ("again-7-1", "COMPLETED"),
        ("again-9-1", "STARTED"), ("again-9-1", "COMPLETED"), ("block", "STARTED"),
        ("block", "COMPLETED"), ("again-10-1", "STARTED"), ("again-10-1", "COMPLETED"),
    ]  # fmt: skip
    query.batch({"none": 12})  # which was dropped
    assert query.ended() == [("a", "none")]
    assert not query.queue.requests
    assert not query.queue.batch.notifications


def test_a_start_reads_what_could_not_be_read_before() -> None:
    query = Query()
    query.planner.refused = "not authorized"
    assert query.batch({"x": 7}) == query.batch({"x": 7}) == []
    assert query.notified == [("again-7-1", "ABORTED")]
    query.planner.refused = None
    assert query.batch({"x": 7, "y": 8}) == ["a.y", "a.y"]
    query.take("pause", signal("pause-snapshot"))
    query.take("resume", signal("resume-snapshot"))
    told = [(each["id"], each["type"]) for each in query.queue.batch.notifications[-2:]]
    assert told == [("again-8-1", "PAUSED"), ("again-8-1", "RESUMED")]
    read = [*query.batch({"x": 7, "y": 8}, is_first=True), *query.rest()]
    assert read == [*["a.x"] * 4, *["a.y"] * 2]
    assert [name for name, kind in query.notified if kind == "COMPLETED"] == [
        "again-7-1",
        "again-8-1",
    ]


def test_documents_of_an_aborted_request_are_lost_only_until_a_start_reads_them() -> None:
    query = Query()
    query.planner.refused = "not authorized"
    assert query.batch(lost=[("x", 4, 7), ("y", 5, 7)]) == []
    assert query.batch(lost=[("x", 6, 8)]) == []
    told = [each["additional_data"] for each in query.queue.batch.notifications]
    assert told == [
        {
            "reason": "not authorized. The table lacks documents of data_collections until a start "
            "of the job reads them",
            "data_collections": "a.x",
        }
    ]
    assert query.batch() == []
    [aborted] = query.queue.requests  # however many were aborted
    assert aborted.selection == MissingDocuments(
        (), {"a.x": ('{"$numberInt": "4"}', '{"$numberInt": "6"}'), "a.y": ('{"$numberInt": "5"}',)}
    )
    assert query.queue.lost == dict.fromkeys(
        [("a", "x"), ("a", "y")], high_water_mark(Timestamp(8, 1))
    )
    query.take("stop", signal("stop-snapshot"))
    assert [(each["id"], each["type"]) for each in query.queue.batch.notifications] == [
        ("stop", "REFUSED")
    ]
    query.planner.refused = None
    assert query.batch() == []
    assert query.batch(is_first=True) == ["a.x", "a.y"]
    query.rest()
    assert query.queue.lost == {}
    assert query.notified[-1] == ("again-7-1", "COMPLETED")


def test_a_start_requests_again_what_its_scope_had_gained() -> None:
    query, gain = Query(), ScopeGain("again-9", high_water_mark(MARK), Scope("b"))
    query.queue = query.queue.with_request(SnapshotRequest(gain.id, "incremental", gain))
    query.planner.refused = "not authorized"
    assert query.batch() == []
    assert query.notified == [("again-9", "ABORTED")]
    query.planner.refused = None
    assert query.batch() == []
    assert query.batch(is_first=True) + query.rest() == ["b.z"] * 4
    assert query.queue.batch.ending is not None
    assert query.queue.batch.ending.selection == gain


def test_a_pipeline_without_filters_keeps_what_a_table_lacks_for_a_later_start() -> None:
    query = Query()
    query.snapshots = SnapshotScheduler(query.planner, (), "no snapshotFilters")
    assert query.batch(lost=[("x", 4, 7)]) == []
    assert query.notified == [("again-7-1", "ABORTED")]
    query.snapshots = SnapshotScheduler(query.planner)
    assert query.batch(is_first=True) == ["a.x"]


def test_documents_that_a_table_lacks_are_requested_once_in_one_chunk() -> None:
    query = Query()
    lost = [("x", 4, 7), ("x", 5, 7), ("y", 6, 6)]
    assert query.batch(lost=lost) == ["a.x", "a.y"]
    [request] = query.queue.requests
    assert request.selection.condition("a.x") == {"_id": {"$in": [4, 5]}}
    assert request.selection.condition("a.y") == {"_id": {"$in": [6]}}
    assert query.batch(lost=lost) == []
    assert query.queue.batch.ending is None  # other documents of these collections were not read
    assert query.notified[-1] == ("again-7-1", "COMPLETED")

    # What waits becomes one request, in which a collection is read as a whole or in part.
    assert query.batch({"x": 8}) == ["a.x", "a.x"]
    query.batch(lost=[("x", 1, 9), ("y", 1, 9)])
    query.batch({"x": 10}, lost=[("y", 2, 11)])
    [waiting] = [each for each in query.queue.requests if each.plan is None]
    keys = tuple(f'{{"$numberInt": "{n}"}}' for n in (1, 2))
    assert waiting.selection == MissingDocuments(("a.x",), {"a.y": keys})
    query.rest()
    assert query.ended() == [("a", "x"), ("a", "x2")]

    # Of too many, the collection is read.
    assert query.batch(lost=[("y", n, 20) for n in range(9000)]) == ["a.y", "a.y"]
    query.batch(lost=[("gone", 1, 21)])
    query.rest()
    assert query.notified[-1] == ("again-21-1", "ABORTED")


def test_a_paused_snapshot_reads_nothing_until_it_is_resumed() -> None:
    query = Query()
    query.batch(s=signal(data_collections=["b.z"]))
    assert query.batch(t=signal("pause-snapshot", type="incremental")) == []
    assert query.batch() == []
    assert not query.queue.batch.has_output
    # A blocking one is not paused.
    assert query.batch(u=signal(type="blocking", data_collections=["a.x"])) == ["a.x", "a.x"]
    assert any(each.blocks_stream for each in query.queue.requests)
    assert query.rest() == ["a.x", "a.x"]
    assert query.batch(v=signal("resume-snapshot")) == ["b.z", "b.z"]
    kinds = [kind for name, kind in query.notified if name == "s"]
    assert kinds == ["STARTED", "IN_PROGRESS", "PAUSED", "RESUMED", "IN_PROGRESS",
                     "TABLE_SCAN_COMPLETED"]  # fmt: skip


def test_the_snapshot_of_the_mode_comes_first_and_is_read_at_its_own_time() -> None:
    query = Query()
    query.batch(s=signal(data_collections=["b.z"]))
    query.queue = query.snapshots.begin(query.queue.without_batch(), MARK)
    assert any(each.blocks_stream for each in query.queue.requests)
    assert query.batch() == ["a.x", "a.x"]
    assert (query.queue.batch.reading, query.queue.initial_plan is None) == (MARK, False)
    assert [query.batch(), query.batch()] == [["a.x", "a.x"], []]
    assert query.queue.batch.ending is not None
    assert query.queue.initial_plan is None
    assert query.rest() == ["b.z"] * 2
    name = f"initial-{MARK.time}-{MARK.inc}"
    kinds = [kind for identifier, kind in query.notified if identifier == name]
    assert kinds == ["IN_PROGRESS", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"]


class Replayed:
    """A cursor on signals of one cluster time, as of an insertMany."""

    events = tuple(
        (f"82{MARK.time:08X}{MARK.inc:08X}2B042C0100296E04{number:04X}", number)
        for number in range(120)
    )
    alive = True

    def __init__(self, position: Position) -> None:
        self._left = [each for each in self.events if each[0] > key_of(position)]
        self.resume_token = {"_data": key_of(position)}

    def try_reply(self, max_await: float | None = None) -> list[bytes]:
        found, self._left = self._left, []
        self.resume_token = {"_data": found[-1][0] if found else high_water_mark(Timestamp(200, 1))}
        events = (bson.encode({"_id": {"_data": t}, "fullDocument": {"_id": n}}) for t, n in found)
        # No driver can decode the last one.
        return [each.replace(b"\x10_id\0\x77", b"\x15_id\0\x77") for each in events]

    def close(self) -> None:
        """There is no server."""


def test_many_signals_of_one_cluster_time_come_once_each() -> None:
    collection = SignalCollection(Replayed, lambda: Timestamp(150, 1))
    queue, position, found = SnapshotQueue(), AtTime(Timestamp(99, 1)), list[str]()
    while len(found) <= len(Replayed.events):
        signals, reached = collection.receive(position, queue.handled, queue.signal_position)
        queue = SnapshotQueue(queue.handled, signal_position=reached)
        if not signals:
            break
        for each in signals:
            queue = queue.with_handled(each.id, ())
        found += [each.id for each in signals]
    ids = [str(number) for _, number in Replayed.events]
    assert found == [*ids[:-1], Replayed.events[-1][0]]


def test_a_signal_is_processed_once_though_it_causes_nothing() -> None:
    options, scheduler = parse_options({"uri": "mongodb://a"}), Mock(skipped=lambda queue: queue)
    planner = BatchPlanner(options, QueryOutput(), Mock(), Mock(), Mock(), scheduler, Mock())
    start = Offset(AtTime(MARK))
    batch = EventRange(start.position, start.position, 0)
    assert planner._moved(start, batch, SnapshotQueue()) is None
    processed = SnapshotQueue().with_handled("1", ())
    moved = planner._moved(start, batch, processed)
    assert moved is not None
    assert moved.snapshots == processed
