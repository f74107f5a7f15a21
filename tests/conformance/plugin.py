"""A pytest plugin: ``--conformance-report`` writes the rules, their tests and the outcomes.

tests/conftest.py loads it, so that it also sees runs that include other folders.
"""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.conformance.rules import RULES, Rule
from tests.harness.clusters import real_servers_named

REPORT = Path(__file__).parents[2] / "build" / "conformance.md"
_RESULTS = ("**does not hold**", "holds", "skipped")
"""The outcomes of a rule's tests in a word or two; the first one that a test has is the rule's."""

_outcomes: dict[Rule, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
"""The functions that test a rule, by outcome."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--conformance-report",
        action="store_true",
        help="write build/conformance.md from this run's outcomes",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "rule(section, rule): a rule of docs/protocol.md that a test verifies"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Report each test's rules with its outcome, also from pytest-xdist's processes."""
    for item in items:
        item.user_properties += [("rule", mark.args) for mark in item.iter_markers("rule")]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcomes of all tests, including those that pytest-xdist runs elsewhere."""
    for name, rule in report.user_properties:
        if name == "rule" and (report.when == "call" or not report.passed):
            failed = report.failed or (report.skipped and hasattr(report, "wasxfail"))
            result = _RESULTS[0 if failed else 1 if report.passed else 2]
            file, _, function = report.nodeid.partition("[")[0].rpartition("::")
            _outcomes[tuple(rule)][result].add(f"`{Path(file).name}::{function}`")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--conformance-report"):
        return
    servers = "MongoDB's own servers" if real_servers_named() else "the embedded cluster"
    lines = [f"# Conformance\n\nThe rules of `docs/protocol.md` and their tests, on {servers}."]
    for section in RULES:
        lines.append(f"\n## {section}\n\n| rule | tests | result |\n| --- | --- | --- |")
        for rule, found in _outcomes.items():
            if rule[0] == section:
                tests = ", ".join(sorted(set().union(*found.values())))
                lines.append(f"| {rule[1]} | {tests} | {min(found, key=_RESULTS.index)} |")
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n")
    terminalreporter.section("conformance with docs/protocol.md")
    terminalreporter.write_line(f"written: {REPORT}")
