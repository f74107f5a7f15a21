"""A pytest plugin that collects test outcomes by rule, prints a table and writes the report.

tests/conftest.py loads it, so that it also sees runs that include other folders.
"""

from pathlib import Path

import pytest

from tests.conformance.report import Outcomes, Rule, all_rules, document, table, written
from tests.harness.clusters import real_servers_named

REPORT = Path(__file__).parents[2] / "build" / "conformance.md"
COLLECTED = pytest.StashKey[Outcomes]()


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
    config.stash[COLLECTED] = Outcomes()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = set(all_rules())
    for item in items:
        for mark in item.iter_markers("rule"):
            rule: Rule = mark.args
            if rule not in known:
                raise pytest.UsageError(f"{item.nodeid}: no such rule: {rule}")
            item.user_properties.append(("rule", rule))
            config.stash[COLLECTED].tests.setdefault(rule, set()).add(_function(item.nodeid))


def _function(nodeid: str) -> str:
    file, _, function = nodeid.partition("[")[0].rpartition("::")
    return f"{Path(file).name}::{function}"


class _Recorder:
    """Records the outcomes of all tests, including those that pytest-xdist runs elsewhere."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, rule in report.user_properties:
            if name != "rule":
                continue
            key: Rule = tuple(rule)
            self._outcomes.tests.setdefault(key, set()).add(_function(report.nodeid))
            if report.failed or (report.skipped and hasattr(report, "wasxfail")):
                counts = self._outcomes.failed
            elif report.skipped:
                reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
                self._outcomes.skipped[key] = reason.removeprefix("Skipped: ") or "skipped"
                continue
            elif report.when == "call":
                counts = self._outcomes.passed
            else:
                continue
            counts[key] = counts.get(key, 0) + 1


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(_Recorder(session.config.stash[COLLECTED]))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    outcomes = config.stash[COLLECTED]
    if config.getoption("--conformance-report"):
        terminalreporter.section("conformance with docs/protocol.md")
        for line in table(outcomes):
            terminalreporter.write_line(line)
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(_report(outcomes))
        terminalreporter.write_line(f"written: {REPORT}")


def _report(outcomes: Outcomes) -> str:
    return document(outcomes, written(REPORT), real=real_servers_named())
