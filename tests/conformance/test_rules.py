"""Every rule has a test."""

from pathlib import Path

import pytest

from tests.conformance.plugin import COLLECTED
from tests.conformance.report import Outcomes, all_rules


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
