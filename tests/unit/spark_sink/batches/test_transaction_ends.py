"""Batches that end between transactions, on a fictional history."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_sink.batches.read_task import TaskReader
from spark_sink.events.positions import AtTime, Position
from tests.doubles.event_history import History, SteppingClock, planner


def batches(history: History, max_events: int | None, *, keeps: bool = True) -> list[list[Any]]:
    """Return the transactions of the events of each batch, None for an event outside of any."""
    plan = planner(history, keeps_transactions=keeps, clock=SteppingClock(0.001))
    start: Position = AtTime(history.beginning)
    found = []
    while True:
        batch = plan.next_batch(start, max_events)
        if batch.end == start:
            plan.close()
            assert history.open_streams == 0
            return found
        tasks = plan.tasks(batch)
        events = [event for task in tasks for event in TaskReader(task, history.watch).events()]
        assert batch.events in (None, len(events))
        found.append([event.get("txnNumber") for event in events])
        start = batch.end


def history_of(transactions: list[int | None]) -> History:
    """Return a history of inserts, one at each cluster time, in these transactions."""
    history = History()
    for number, transaction in enumerate(transactions):
        event = history.insert(number)
        if transaction is not None:
            event |= {"lsid": {"id": b"session"}, "txnNumber": transaction}
    return history


def test_a_transaction_whose_shards_wrote_it_a_tick_apart_is_in_one_batch() -> None:
    history = history_of([None, 1, 1, 1, 2, 2, None, None])
    assert batches(history, 2) == [[None, 1, 1, 1], [2, 2], [None, None]]
    assert batches(history, 2, keeps=False) == [[None, 1], [1, 1], [2, 2], [None, None]]


def test_the_rest_of_a_transaction_is_awaited_for_a_short_time() -> None:
    history = history_of([None, 1, 1, None])
    history.pauses = {2}  # the stream has nothing to return after the first half, once
    assert batches(history, 100) == [[None, 1, 1], [None]]
    history.pauses = {2}
    assert batches(history, 100, keeps=False) == [[None, 1], [1, None]]


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([None, None, 1, 2, 3]), max_size=30),
    st.integers(1, 6),
    st.sets(st.integers(0, 30), max_size=4),
)
def test_no_end_lies_between_two_events_of_a_transaction(transactions, max_events, pauses) -> None:
    history = history_of(transactions)
    history.pauses = pauses
    found = batches(history, max_events)
    assert [each for batch in found for each in batch] == transactions
    for batch, following in pairwise(found):
        assert batch[-1] is None or batch[-1] != following[0]
