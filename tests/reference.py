"""Writes the reference of the metrics: ``python -m tests.reference``."""

import asyncio
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.admin import admin_port, get, watched_facade

METRICS = Path(__file__).parents[1] / "docs" / "metrics.md"

_HEAD = """# Metrics

All metrics of `/metrics` on the [admin port](admin.md), written by `python -m tests.reference`. A
histogram has the suffixes `_bucket`, `_count` and `_sum`. Counts are those of all workers together,
since the start.

| metric | type | labels | |
|---|---|---|---|
"""
_LABELS = {
    "mergerouter_history_left_seconds": ("place", "shard"),
    "mergerouter_client_requests": ("kind",),
}
"""Labels of metrics that have no samples without clients."""


async def metrics_reference() -> str:
    """Return the page."""
    async with watched_facade() as made, admin_port(made) as port:
        text = (await asyncio.to_thread(get, port, "/metrics")).text
    return _HEAD + "\n".join(map(_row, text_string_to_metric_families(text))) + "\n"


def _row(family: Metric) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    found = {label for sample in family.samples for label in sample.labels} - {"le"}
    labels = ", ".join(sorted(found) or _LABELS.get(family.name, ()))
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


if __name__ == "__main__":
    METRICS.write_text(asyncio.run(metrics_reference()))
