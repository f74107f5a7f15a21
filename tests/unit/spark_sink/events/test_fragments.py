"""Large events that arrive in fragments ($changeStreamSplitLargeEvent)."""

from collections.abc import Sequence
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.events.header import fragment_of, join_fragments
from spark_sink.events.positions import AtTime, Position, key_of
from spark_sink.source.event_tasks import TaskReader
from tests.doubles.event_history import History, Inbox, planner


def fragment(event: int, number: int, of: int) -> dict[str, Any]:
    place = {"splitEvent": {"fragment": number, "of": of}}
    return {"_id": {"_data": f"{event}.{number}"}, **place, f"f{number}": event}


def joined(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [bson.decode(event) for event in join_fragments(map(bson.encode, documents))]


def test_fragments_become_whole_events():
    small = {"_id": {"_data": "0"}, "ns": {"db": "shop"}}
    parts = [fragment(1, 1, 3), fragment(1, 2, 3), fragment(1, 3, 3)]
    more = [fragment(2, 1, 2), fragment(2, 2, 2)]
    assert joined([small, *parts, *more, small]) == [
        small,
        {"_id": {"_data": "1.3"}, "f1": 1, "f2": 1, "f3": 1},
        {"_id": {"_data": "2.2"}, "f1": 2, "f2": 2},
        small,
    ]


@pytest.mark.parametrize(
    "events",
    [
        [fragment(1, 2, 3), fragment(1, 3, 3)],
        [fragment(1, 1, 3), fragment(1, 2, 3)],
        [fragment(1, 3, 3), {"_id": {"_data": "2"}}, fragment(3, 1, 2)],
        [{"_id": {"_data": "2"}, "splitEvent": "a field of a pipeline"}],
    ],
    ids=["the first is missing", "the last is missing", "both ends", "another field"],
)
def test_incomplete_events_stay_in_fragments(events):
    assert joined(events) == events


@given(
    sizes=st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=6),
    pauses=st.sets(st.integers(min_value=0, max_value=24)),
    max_events=st.integers(min_value=1, max_value=6) | st.none(),
    sharded=st.booleans(),
)
def test_no_batch_ends_within_a_split_event(sizes, pauses, max_events, sharded):
    history = History()
    start: Position = AtTime(history.now)
    for number, size in enumerate(sizes):
        if size > 1:
            history.insert_large(number, size)
        else:
            history.insert(number)
    history.pauses = pauses
    plan = planner(history, sharded=sharded, inbox=Inbox())
    found = 0
    for _ in range(100):
        batch = plan.next_batch(start, max_events)
        for task in plan.tasks(batch):
            for event in join_fragments(TaskReader(task, history.watch).events()):
                assert fragment_of(event) is None
                found += 1
        if batch.end == start and found == len(sizes):
            break
        start = batch.end
    assert found == len(sizes)
    assert key_of(start) >= history.keys[-1]
    plan.close()
    assert history.open_streams == 0
