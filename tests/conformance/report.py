"""The conformance report: the tests that verify each rule, and their outcomes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.rules import RULES

Rule = tuple[str, str]
"""The section and the rule's text."""

NOT_RUN = "not run here"
_ROW = re.compile(r"^\| (.*) \| (.*) \| (.*) \| (.*) \|$")

_HEAD = """# Conformance

What `docs/protocol.md` says of change streams in its sections 2 to 6, the tests (in
`tests/conformance/`) that hold it, and how these fared through the whole router: before the
embedded cluster, and before MongoDB's own servers. Made by

    make conformance                                  # embedded
    MERGEROUTER_MONGO_BIN=folder make conformance     # real servers: the other column

Each run fills in its column, of the rules that it has run, and leaves the rest as it was.
"""


@dataclass
class Outcomes:
    """The outcomes of one run's tests, by rule.

    ``tests`` names the test functions as ``file::function``. ``passed`` and ``failed`` count
    outcomes. ``skipped`` gives the reason why a rule's tests were skipped.
    """

    tests: dict[Rule, set[str]] = field(default_factory=dict)
    passed: dict[Rule, int] = field(default_factory=dict)
    failed: dict[Rule, int] = field(default_factory=dict)
    skipped: dict[Rule, str] = field(default_factory=dict)

    def held_by(self, rule: Rule) -> str:
        """Return the test functions that verify a rule, formatted for the report."""
        return ", ".join(f"`{name}`" for name in sorted(self.tests.get(rule, ())))

    def result(self, rule: Rule) -> str:
        """Return a rule's outcome in a word or two."""
        if self.failed.get(rule):
            return "**does not hold**"
        if self.passed.get(rule):
            return "holds"
        return self.skipped.get(rule, NOT_RUN)


def all_rules() -> Iterable[Rule]:
    """Return all rules in order."""
    return ((section, rule) for section, rules in RULES.items() for rule in rules)


def written(path: Path) -> Mapping[Rule, tuple[str, str, str]]:
    """Read a report: tests, embedded and real result by rule; empty if the file is missing."""
    rows: dict[Rule, tuple[str, str, str]] = {}
    section = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("## Section "):
            section = line.removeprefix("## Section ")
        elif (row := _ROW.match(line)) and row[1] != "rule" and not row[1].startswith("---"):
            rows[section, row[1]] = row[2], row[3], row[4]
    return rows


def document(outcomes: Outcomes, before: Mapping[Rule, tuple[str, str, str]], *, real: bool) -> str:
    """Return the report as Markdown; ``before`` fills the cells that this run did not produce."""
    lines = [_HEAD]
    section = ""
    for rule in all_rules():
        if rule[0] != section:
            section = rule[0]
            lines += [f"## Section {section}", "", "| rule | tests | embedded | real |"]
            lines += ["| --- | --- | --- | --- |"]
        tests, embedded, on_real = before.get(rule, ("", NOT_RUN, NOT_RUN))
        tests = outcomes.held_by(rule) or tests
        result = outcomes.result(rule)
        if result != NOT_RUN:
            embedded, on_real = (embedded, result) if real else (result, on_real)
        lines.append(f"| {rule[1]} | {tests} | {embedded} | {on_real} |")
        if rule[1] == RULES[section][-1]:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def table(outcomes: Outcomes) -> list[str]:
    """Return one line of terminal output for each rule whose tests are part of the run."""
    width = 90
    return [
        f"{section:>12}  {rule[:width]:<{width}}  {outcomes.result((section, rule)).strip('*')}"
        for section, rule in all_rules()
        if (section, rule) in outcomes.tests
    ]
