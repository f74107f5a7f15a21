"""What the demo says of its readers."""

import re
import tempfile
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from embedded.demo.cli import demo
from embedded.demo.job_tables import JobTables
from embedded.demo.ledger import Change, Seen, Verdict, judge, judge_table
from embedded.demo.processes import ProgramError
from embedded.demo.sequence import Demo
from embedded.demo.view import LiveView, closing, verdict_table


def _seen(*keys: int) -> Seen:
    seen = Seen()
    for number, key in enumerate(keys):
        seen.add(f"{number:02}", Change("insert", key, 0))
    return seen


def _written(*keys: int) -> list[Change]:
    return [Change("insert", key, 0) for key in keys]


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


def test_a_reader_that_is_late_is_no_defect_and_not_good(tmp_path: Path) -> None:
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()  # of a batch without rows
    tables = JobTables(tmp_path)
    assert tables.refresh() == 0
    for verdict in (
        judge("Spark, changes", _written(), _seen()),
        replace(judge("Spark, changes", _written(1, 2), _seen(1)), late=True),
        replace(judge_table("Spark, current", {1: 1}, tables.current()), late=True),
    ):
        assert not verdict.good
        assert "late" in _table(verdict)
        assert "too busy" in _closing(verdict)
    doubled = replace(judge("Spark, changes", _written(1, 2), _seen(1, 1)), late=True)
    assert "WRONG" in _table(doubled)


def test_the_live_view_labels_its_time() -> None:
    text = StringIO()
    Console(file=text, width=100).print(LiveView("uri", "feed").render())
    assert re.search(r"elapsed +\d+s", text.getvalue())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProgramError("the router ended early"), "no verdict: the router ended early"),
        (OSError("no memory"), "no verdict: OSError: no memory"),
    ],
)
def test_whatever_ends_the_demo_is_one_line(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_demo: Demo) -> None:
        raise ExceptionGroup("tasks", [error])

    monkeypatch.setattr(Demo, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    app = typer.Typer()
    app.command()(demo)
    result = CliRunner().invoke(app)
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == said
    assert "Traceback" not in result.output
    (log,) = tmp_path.glob("*/demo.log")
    assert "Traceback" in log.read_text()
