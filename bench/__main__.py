"""`python -m bench`: measure, print tables, keep the raw figures under bench/results."""

import argparse
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import throughput

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--sizes", type=int, nargs="+", default=[600])
    parser.add_argument("--events", type=int, default=240_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    console = Console()
    machine = _machine()
    console.print(machine)
    rows = []
    for size in args.sizes:
        for shards in args.shards:
            rows.append(throughput.measure(shards, size, args.events, args.runs))
            console.print(f"measured {shards} shards, {size}-byte events", style="dim")
    console.print(_throughput_table(rows))
    RESULTS.mkdir(exist_ok=True)
    figures = {
        "machine": machine,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "throughput": throughput.as_json(rows),
    }
    path = RESULTS / "figures.json"
    path.write_text(json.dumps(figures, indent=1))
    console.print(f"raw figures: {path}")


def _throughput_table(rows: list[throughput.Row]) -> Table:
    table = Table(title="change streams merged, events/s (medians)")
    for column in (
        "shards",
        "event bytes",
        "router",
        "router CPU µs/event",
        "direct drain",
        "pymongo + heapq",
        "its CPU µs/event",
        "router / heapq",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row.shards),
            str(row.size),
            f"{row.router_rate:,.0f}",
            f"{row.router_cpu:.2f}",
            f"{row.direct_rate:,.0f}",
            f"{row.application_rate:,.0f}",
            f"{row.application_cpu:.1f}",
            f"{row.over_application:.1f}x",
        )
    return table


def _machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    python = platform.python_version()
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {python}"


if __name__ == "__main__":
    main()
