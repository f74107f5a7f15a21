"""The audit finds lost, unacknowledged, old and late events."""

from dataclasses import replace
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from tests.faults.audit import image_problems, ledger_problems, lookup_problems, opener_problems
from tests.faults.watchers import Opener, Watch, Watcher
from tests.faults.writers import REMADE, Ledger
from tests.simulation.segments import Segment


def _event(number: int, step: int = 0) -> dict[str, Any]:
    return {
        "_id": {"_data": f"{number:04}"},
        "operationType": "update" if step else "insert",
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": f"d{number - step}"},
        "fullDocument": {"n": step},
    }


HISTORY = [_event(1), _event(2, 1), _event(3), _event(4)]
LEDGER = Ledger(
    begun={("d1", 0): 1.0, ("d1", 1): 2.0, ("d3", 0): 3.0, ("d4", 0): 4.0},
    acknowledged={"d1": ["insert", "update"], "d3": ["insert"], "d4": ["insert"]},
)


def _watcher(*segments: Segment) -> Watcher:
    return Watcher("w", "", Watch(), segments=list(segments))


@pytest.mark.parametrize(
    ("operation", "code", "tolerated"),
    [("invalidate", 260, True), ("drop", 260, False), ("invalidate", 286, False)],
)
def test_only_a_resume_after_a_received_invalidate_is_no_failure(
    operation: str, code: int, tolerated: bool
) -> None:
    last = {**_event(1), "operationType": operation}
    watcher = _watcher(Segment("0000", [last], end="0001"))
    assert watcher.tolerates(OperationFailure("refused", code)) == tolerated


@pytest.mark.parametrize("history", [HISTORY[:3], [*HISTORY, _event(5)], HISTORY[:1] + HISTORY[2:]])
def test_a_history_without_the_acknowledged_writes_is_found(history: list[Any]) -> None:
    assert [*ledger_problems(LEDGER, history)]


_DROP = {
    "_id": {"_data": "0005"}, "operationType": "drop", "ns": {"db": "shop", "coll": REMADE}
}  # fmt: skip


def test_an_acknowledged_drop_that_mongos_does_not_tell_is_found() -> None:
    ledger = replace(LEDGER, drops=1)
    assert [*ledger_problems(ledger, [*HISTORY, _DROP])] == []
    assert [*ledger_problems(ledger, HISTORY)]


def _updated(document: Any) -> dict[str, Any]:
    change = {"updateDescription": {"updatedFields": {"n": 2}}}
    return {**_event(2, 1), **change, "fullDocument": document}


@pytest.mark.parametrize(
    ("document", "sound"),
    [
        ({"_id": "d1", "n": 2}, True),
        ({"_id": "d1", "n": 7}, True),
        ({"_id": "d1", "n": 1}, False),
        ({"_id": "d3", "n": 2}, False),
        (None, False),
    ],
)
def test_a_document_older_than_its_update_is_found(document: Any, sound: bool) -> None:
    watcher = _watcher(Segment("0000", [_updated(document)], end="9"))
    assert ([*lookup_problems(watcher, HISTORY)] == []) is sound


def test_a_wrong_post_image_is_found() -> None:
    watcher = _watcher(Segment("0000", [_updated({"n": 2})], end="9"))
    assert [*image_problems(watcher, [_updated({"n": 2})])] == []
    assert [*image_problems(watcher, [_updated({"n": 3})])]


def test_a_stream_from_now_that_starts_too_late_is_found() -> None:
    opener = Opener("o", "", 1, found=[(Watch(), Segment("0003", HISTORY[3:], end="0004"), 2.5)])
    assert any("s later" in each for each in opener_problems(opener, HISTORY, LEDGER, "0004"))
    opener.found = [(Watch(), Segment("0003", HISTORY[3:], end="0004"), 3.5)]
    assert [*opener_problems(opener, HISTORY, LEDGER, "0004")] == []
