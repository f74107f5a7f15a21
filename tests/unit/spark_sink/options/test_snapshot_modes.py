"""When a query reads documents: Debezium's snapshot modes."""

import threading
import time
from typing import Any
from unittest.mock import Mock

import bson
import pytest
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.dataclass_json import from_json, to_json
from spark_sink.errors import OptionError
from spark_sink.events.positions import AtTime, EventRange, FromNow, Position
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import (
    POLICIES,
    QueryStart,
    SnapshotOptions,
    SnapshotPolicy,
    custom_mode,
)
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.snapshot.queue import BatchPart, SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.selections import CollectionPatterns
from spark_sink.source.batch_planner import BatchPlanner, QueryOutput
from spark_sink.source.offsets import Offset
from spark_sink.source.snapshot_tasks import tasks_of_queue
from tests.unit.spark_sink.options import snapshot_choices

URI = "mongodb://127.0.0.1:27020"
BASED = "snapshot.mode.configuration.based"
CUSTOM = "tests.unit.spark_sink.options.snapshot_choices"
POSITION = AtTime(Timestamp(100, 1))


def based(*true: str) -> SnapshotOptions:
    given = {f"{BASED}.{name}": "true" for name in true}
    return parse_options({"uri": URI, "snapshot.mode": "configuration_based", **given}).snapshot


@pytest.mark.parametrize(
    ("true", "policy"),
    [
        (["start.stream"], POLICIES["no_data"]),
        (["snapshot.data"], POLICIES["initial_only"]),
        (["snapshot.data", "start.stream", "snapshot.schema"], POLICIES["initial"]),
        (["snapshot.data", "start.stream", "snapshot.on.data.error"], POLICIES["when_needed"]),
        (
            ["start.stream", "snapshot.on.data.error", "snapshot.on.schema.error"],
            SnapshotPolicy(if_history_is_lost=True, streams=True),
        ),
    ],
)
def test_a_mode_can_be_configured_by_options(true: list[str], policy: SnapshotPolicy) -> None:
    assert based(*true).policy == policy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"snapshot.mode": "configuration_based"}, "reads neither documents nor events"),
        ({f"{BASED}.snapshot.data": "true"}, "is for snapshot.mode=configuration_based"),
        (
            {"snapshot.mode": "configuration_based", f"{BASED}.start.stream": "yes"},
            "must be true or false",
        ),
        ({"snapshot.mode": "custom"}, "require each other"),
        ({"snapshot.mode.custom.name": "a:b"}, "require each other"),
        ({"onHistoryLost": "ignore"}, "must be fail or snapshot, not 'ignore'"),
        (
            {
                "onHistoryLost": "fail",
                "snapshot.mode": "configuration_based",
                f"{BASED}.start.stream": "true",
                f"{BASED}.snapshot.on.data.error": "true",
            },
            "remove one of them",
        ),
        (
            {
                "onHistoryLost": "fail",
                "snapshot.mode": "custom",
                "snapshot.mode.custom.name": "a:b",
            },
            "'snapshot.mode.custom.name' already decides",
        ),
        ({"snapshot.delay.ms": "soon"}, "must be a number of milliseconds, not 'soon'"),
        ({"snapshot.include.collection.list": "("}, "is not a regular expression"),
        (
            {"snapshotMode": "custom", "snapshot.mode.custom.name": "a:b", "startAfter": "82"},
            "not a resume token",
        ),
    ],
)
def test_invalid_modes_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({"uri": URI, **given})


def test_a_start_option_is_allowed_with_a_snapshot_only_for_a_lost_history() -> None:
    given = {f"{BASED}.{name}": "true" for name in ("start.stream", "snapshot.on.data.error")}
    options = {"uri": URI, "snapshot.mode": "configuration_based", **given}
    assert parse_options({**options, "startAtOperationTime": "100,1"}).start == POSITION


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("choices", "must be module:function"),
        ("no.such.module:choose", r"cannot be imported on the driver.*No module named"),
        (f"{CUSTOM}:no_such_function", "cannot be imported"),
        (f"{CUSTOM}:asked", "is not a function"),
        (f"{CUSTOM}:fails", r"failed with KeyError: correct it \('settings'\)"),
        (f"{CUSTOM}:chooses_none", "must return one of no_data, initial.*, not 'custom'"),
    ],
)
def test_a_custom_mode_that_fails_is_reported(name: str, message: str) -> None:
    options = SnapshotOptions(custom=name)
    with pytest.raises(OptionError, match=message):
        options.policy_for(QueryStart(None, snapshot_in_progress=False))


@pytest.mark.parametrize("name", ["no.such.module:choose", f"{CUSTOM}:asked"])
def test_a_missing_custom_mode_fails_immediately(name: str) -> None:
    with pytest.raises(OptionError, match=r"snapshot\.mode\.custom\.name"):
        custom_mode(name)


IN_SNAPSHOT = SnapshotQueue(
    requests=(SnapshotRequest("i", "initial", plan=SnapshotPlan(POSITION.time)),)
)

LACKING = high_water_mark(POSITION.time)


def started(position: Position, *, is_in_snapshot: bool = False, **options: str) -> Any:
    """Return the planner of a query at a position, and what plans its next batch."""
    state = IN_SNAPSHOT if is_in_snapshot else SnapshotQueue()
    connection = Mock()
    connection.client.with_retries = lambda call: call()
    connection.scheduler.begin.return_value = IN_SNAPSHOT
    connection.signal_receiver.receive = lambda queue, _: queue
    connection.scheduler.advance = lambda queue, _: queue
    connection.signal_receiver.has_more = False
    connection.client.clocks.return_value.cluster_time = POSITION.time
    connection.event_planner.next_batch = lambda start, *_, **__: EventRange(start, start, 0)
    planner = BatchPlanner(
        parse_options({"uri": URI, **options}),
        Mock(QueryOutput, follows_scope=False, unread=lambda _: ({("shop", "a"): LACKING}, ())),
        connection.client,
        connection.event_planner,
        connection.chunk_planner,
        connection.scheduler,
        connection.signal_receiver,
    )
    return planner, lambda: planner.plan(Offset(position, Scope(), snapshots=state), None)


@pytest.mark.parametrize(
    ("mode", "is_in_snapshot", "first", "later"),
    [
        ("no_data", False, False, False),
        ("initial", False, True, False),
        ("always", False, True, True),
        ("always", True, False, False),
    ],
)
def test_a_start_decides_when_a_snapshot_begins(
    mode: str, is_in_snapshot: bool, first: bool, later: bool
) -> None:
    for position, begins in ((FromNow(), first), (POSITION, later)):
        planner, latest = started(position, is_in_snapshot=is_in_snapshot, snapshotMode=mode)
        latest()
        assert planner.scheduler.begin.called == begins
        for call in planner.scheduler.begin.call_args_list:
            assert call.args[0].required_at == LACKING  # with what the table lacks
    latest()
    assert planner.scheduler.begin.call_count == later  # one at each start


def test_a_custom_mode_receives_the_state_of_the_checkpoint() -> None:
    snapshot_choices.asked.clear()
    name = f"{CUSTOM}:only_after_a_checkpoint"
    options = {"snapshot.mode": "custom", "snapshot.mode.custom.name": name}
    for position, chosen in ((FromNow(), "no_data"), (POSITION, "always")):
        is_in_snapshot = position == POSITION
        planner, latest = started(position, is_in_snapshot=is_in_snapshot, **options)
        latest()
        assert planner._policy == POLICIES[chosen]
    assert snapshot_choices.asked == [
        QueryStart(None, snapshot_in_progress=False),
        QueryStart(Timestamp(100, 1), snapshot_in_progress=True),
    ]


@pytest.mark.parametrize(("to_the_present", "calls"), [(False, 3), (True, 1)])
def test_a_snapshot_waits_for_the_end_of_its_delay(
    monkeypatch: pytest.MonkeyPatch, to_the_present: bool, calls: int
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    own, sleep = threading.get_ident(), time.sleep

    def pass_time(seconds: float) -> None:
        if threading.get_ident() == own:  # a thread that an earlier test has left may sleep too
            now[0] += seconds
        else:
            sleep(1)

    monkeypatch.setattr("time.sleep", pass_time)
    delay = {"snapshot.delay.ms": "1300"}
    planner, latest = started(POSITION, snapshotMode="always", **delay)
    planner.event_planner.ends_at_present = to_the_present
    found = [latest() is not None for _ in range(calls)]
    monkeypatch.undo()
    assert found == [False] * (calls - 1) + [True]
    assert now == [1.3]


def test_a_snapshot_without_collections_has_no_end_row() -> None:
    plan = SnapshotPlan(Timestamp(100, 1), end=None)
    lists = {"snapshot.include.collection.list": "db.*"}
    listed = [{"db": "db", "coll": "c"}]
    for given, found, ends in (({}, [], [None]), (lists, [("db", "c")], [listed]), (lists, [], [])):
        options, planner = parse_options({"uri": URI, **given}), Mock(names=lambda _, f=found: f)
        chosen = CollectionPatterns(options.snapshot.collections)
        request = SnapshotRequest("i", "initial", chosen, plan)
        state = from_json(SnapshotQueue, to_json(SnapshotQueue(batch=BatchPart(ending=request))))
        tasks = tasks_of_queue(state, FromNow(), options, planner, lambda: Timestamp(200, 1))
        assert [bson.decode(task.event).get("collections") for task in tasks] == ends
