"""Reports of tasks about what they have read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.batches.event_rate import ReadStats, ReportInbox, report


def test_unauthorized_reports_are_dropped() -> None:
    inbox, other = ReportInbox(("127.0.0.1", 1)), ReportInbox(("127.0.0.1", 1))
    passage = ReadStats(3, 900, Timestamp(5, 1), Timestamp(6, 2), 7)
    assert inbox.address is not None
    assert other.address is not None
    report(passage, 1, (*inbox.address[:2], other.address[2]))
    report(passage, 1, inbox.address)
    malformed: list[dict[str, Any]] = [{"events": 4.5}, {"size": None}, {"last": None}]
    for fields in malformed:
        report(replace(passage, **fields), 2, inbox.address)
    report(replace(passage, events=4), 2, inbox.address)
    assert inbox.read(2) == [replace(passage, events=4)]
    inbox.close()
    other.close()
