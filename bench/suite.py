"""The parts of a benchmark suite: options, tables and their columns; and what is kept of a run.

A run's tables go to the terminal, and as Markdown to bench/results or build/bench.
"""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tests.harness.clusters import REAL_SERVERS

PUBLISHED = Path(__file__).parent / "results"
UNPUBLISHED = Path(__file__).parents[1] / "build" / "bench"
_LEAST_RUNS = 3  # whose medians are published


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    Args:
        quick: a short run that shows that everything works; its figures are rough.
        runs: how often each figure is taken; the median counts.
    """

    quick: bool = False
    runs: int = 3

    def scaled(self, full: int, quick: int) -> int:
        """Return ``quick`` in a quick run, else ``full``."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, its key in a row, and the format of its values."""

    heading: str
    key: str
    form: str = ""

    def text(self, row: dict[str, Any]) -> str:
        """Return the cell of ``row``, empty if the row lacks the figure."""
        value = row.get(self.key)
        return "" if value is None else format(value, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows side by side under a title; ``note`` explains the conditions of the figures."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    note: str = ""


def has_real_servers() -> bool:
    """Return whether MongoDB's own servers can be started; if not, say that they are left out."""
    if not (is_named := REAL_SERVERS in os.environ):
        print(f"left out: set {REAL_SERVERS} to the folder of mongod and mongos")
    return is_named


def medians(results: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over several runs."""
    return {name: median(result[name] for result in results) for name in results[0]}


def say_row(columns: Sequence[Column], row: dict[str, Any]) -> None:
    """Print a row of a table while its suite runs."""
    print("; ".join(f"{column.heading} {column.text(row)}" for column in columns))


def markdown_lines(table: Table) -> list[str]:
    """Return a table as lines of Markdown."""
    lines = [f"**{table.title}**", ""]
    lines.append("| " + " | ".join(column.heading for column in table.columns) + " |")
    lines.append("|" + "---:|" * len(table.columns))
    for row in table.rows:
        lines += ["| " + " | ".join(column.text(row) for column in table.columns) + " |"]
    return [*lines, "", *([table.note, ""] if table.note else [])]


def conditions_now(options: Options) -> dict[str, Any]:
    """Return the conditions of a run: machine, versions, commit, load, time and options."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    model = next(models, "unknown processor")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "machine": f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "load": round(os.getloadavg()[0], 2),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "runs": options.runs,
    }


def write_results(
    suite: str, question: str, tables: list[Table], conditions: dict[str, Any]
) -> Path:
    """Write a suite's tables and conditions as Markdown; return the file's path.

    Only a whole run replaces published results: one on real servers that is not quick, and takes
    each figure three times.
    """
    is_whole = not conditions["quick"] and conditions["runs"] >= _LEAST_RUNS
    folder = PUBLISHED if is_whole and REAL_SERVERS in os.environ else UNPUBLISHED
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{suite}.md"
    lines = [line for table in tables for line in markdown_lines(table)]
    shown = ", ".join(f"{key} {value}" for key, value in conditions.items())
    page.write_text("\n".join([f"### {question}", "", *lines, f"({shown})", ""]))
    return page
