"""Every rule has a test, and the report lists it."""

from pathlib import Path

import pytest

from tests.conformance.plugin import COLLECTED, REPORT
from tests.conformance.report import Outcomes, all_rules, document, written


@pytest.fixture
def collected(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Outcomes:
    """Return the tests by rule; skip the test if only a part of the folder was collected."""
    here = Path(__file__).parent
    files = {item.path for item in request.session.items}
    if any("::" in arg for arg in pytestconfig.args) or {*here.glob("test_*.py")} - files:
        pytest.skip("only a part of tests/conformance is run")
    return pytestconfig.stash[COLLECTED]


def test_every_rule_has_a_test(collected: Outcomes) -> None:
    assert [rule for rule in all_rules() if rule not in collected.tests] == []


def test_report_is_current(pytestconfig: pytest.Config, collected: Outcomes) -> None:
    """If this fails, run ``make conformance`` to write the report again."""
    if pytestconfig.getoption("--conformance-report"):
        pytest.skip("this run writes it")
    report = written(REPORT)
    assert [(rule, row[0]) for rule, row in report.items()] == [
        (rule, collected.held_by(rule)) for rule in all_rules()
    ]
    head = REPORT.read_text().partition("\n## ")[0]
    assert document(collected, report, real=False).startswith(head)
