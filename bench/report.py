"""Output of a run's figures: the terminal, and JSON and Markdown under bench/results."""

import json
import os
import platform
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from bench.suite import Suite, Table

RESULTS = Path(__file__).parent / "results"


def circumstances(quick: bool) -> dict[str, Any]:
    """Return the conditions of a run: machine, versions, commit, load and time."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "machine": f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "load": round(os.getloadavg()[0], 2),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
    }


def show(console: Console, table: Table) -> None:
    """Print a table on the console."""
    shown = RichTable(title=table.title, caption=table.note or None, box=box.SIMPLE)
    for column in table.columns:
        shown.add_column(column.heading, justify="right")
    for row in table.rows:
        shown.add_row(*(column.text(row) for column in table.columns))
    console.print(shown)


def keep(suite: Suite, tables: list[Table], around: dict[str, Any]) -> list[Path]:
    """Write a suite's figures and tables; return the paths of the files."""
    RESULTS.mkdir(exist_ok=True)
    figures = RESULTS / f"{suite.name}.json"
    found = [asdict(table) for table in tables]
    content = {"suite": suite.name, "question": suite.question, **around, "tables": found}
    figures.write_text(json.dumps(content, indent=1, default=str) + "\n")
    page = RESULTS / f"{suite.name}.md"
    page.write_text(_markdown(suite, tables, around))
    return [figures, page]


def _markdown(suite: Suite, tables: list[Table], around: dict[str, Any]) -> str:
    lines = [f"### {suite.question}", ""]
    for table in tables:
        lines += [f"**{table.title}**", ""]
        lines.append("| " + " | ".join(column.heading for column in table.columns) + " |")
        lines.append("|" + "---:|" * len(table.columns))
        for row in table.rows:
            lines.append("| " + " | ".join(column.text(row) for column in table.columns) + " |")
        lines += ["", table.note, ""] if table.note else [""]
    shown = ", ".join(f"{key} {value}" for key, value in around.items())
    return "\n".join([*lines, f"({shown})", ""])
