"""Which reports of tasks the planner takes."""

from dataclasses import replace

from bson.timestamp import Timestamp

from spark_sink.source.task_reports import ReadStats, ReportInbox, report


def test_only_the_reports_of_all_tasks_of_the_last_batch_count() -> None:
    inbox = ReportInbox(("127.0.0.1", 1))
    stats = ReadStats(3, 900, Timestamp(5, 1), Timestamp(6, 2), 7)
    first, second = inbox.address(1), inbox.address(2)
    assert first is not None
    assert second is not None
    later = replace(stats, events=4)
    for batch in ([stats, later], [stats]):
        report(stats, (*second[:2], "guessed"))
        report(stats, first)
        for each in batch:
            report(each, second)
        assert inbox.read() == (batch if len(batch) == 2 else [])
    inbox.close()
    assert inbox.read() == []
