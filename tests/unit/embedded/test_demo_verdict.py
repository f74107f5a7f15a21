"""What the demo says of its readers."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from embedded.demo.job_tables import JobTables
from embedded.demo.ledger import Seen, Verdict, Written, judge, judge_table
from embedded.demo.view import closing, verdict_table


def _seen(*keys: int) -> Seen:
    seen = Seen()
    for number, key in enumerate(keys):
        seen.add(f"{number:02}", _written(key).changes[0])
    return seen


def _written(*keys: int) -> Written:
    ledger = Written()
    for key in keys:
        ledger.add("insert", key, 0)
    return ledger


def _table(*verdicts: Verdict) -> str:
    text = StringIO()
    Console(file=text, width=80).print(verdict_table(list(verdicts)))
    return text.getvalue()


def _closing(verdict: Verdict) -> str:
    return closing([verdict], "mergerouter", secure=False, outage=False)


def test_each_change_once_and_in_order_is_good() -> None:
    verdict = judge("driver, watch()", _written(1, 2), _seen(1, 2))
    assert "good" in _table(verdict)
    assert "Every change arrived once and in order" in _closing(verdict)


def test_a_lost_and_a_doubled_change_are_a_defect() -> None:
    for keys in ((1,), (1, 2, 2), (1, 2, 3)):
        verdict = judge("Spark, changes", _written(1, 2), _seen(*keys))
        assert "WRONG" in _table(verdict)
        assert "this is a defect" in _closing(verdict)


def test_a_reader_without_anything_to_read_is_no_defect_and_not_good() -> None:
    verdict = judge("Spark, changes", _written(), _seen())
    assert not verdict.good
    assert "empty" in _table(verdict)
    assert "too busy" in _closing(verdict)


def test_a_job_without_a_batch_has_an_empty_table(tmp_path: Path) -> None:
    tables = JobTables(tmp_path)
    assert tables.refresh() == 0
    verdict = judge_table("Spark, current", {1: 1}, tables.current())
    assert (verdict.lost, verdict.wrong) == (1, True)
