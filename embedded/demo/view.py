"""The demo's live view in the terminal: rates, watermarks, and Spark's commits."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from embedded.demo.ledger import Verdict


@dataclass(slots=True)
class Meter:
    """A count and its rate over the last few seconds."""

    total: int = 0
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=20))

    def set(self, total: int, now: float) -> None:
        """Record that the count was ``total`` at ``now`` seconds."""
        self.total = total
        self._samples.append((now, total))

    @property
    def rate(self) -> float:
        """Events per second over the stored samples."""
        (begun, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - begun) if ended > begun else 0.0


@dataclass(slots=True)
class LiveView:
    """The content of the live view.

    ``uri`` is the router's connection string as an argument for a shell; ``feed`` tells how to
    connect to the feed.
    """

    uri: str
    feed: str
    note: str = "starting"
    written: Meter = field(default_factory=Meter)
    delivered: Meter = field(default_factory=Meter)
    committed: Meter = field(default_factory=Meter)
    spark: str = "starting"
    stream: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def render(self) -> RenderableType:
        """Return the view for rich's live display."""
        return Group(
            Panel(self._rates(), title="mergerouter", subtitle=self.note),
            Panel(self._shards(), title="the merge waits for the slowest shard"),
            Text(f"  mongosh {self.uri}    Compass: the same    {self.feed}", no_wrap=True),
        )

    def _rates(self) -> Table:
        table = Table.grid(padding=(0, 3))
        rows = [
            ("written", self.written, "acknowledged by the cluster"),
            ("watched", self.delivered, "by a driver's watch()"),
            ("in the table", self.committed, self.spark),
        ]
        for name, meter, remark in rows:
            rate = f"{meter.rate:8,.0f}/s" if meter._samples else ""
            table.add_row(name, Text(f"{meter.total:10,}", "bold"), rate, Text(remark, "dim"))
        table.add_row("elapsed", f"{time.monotonic() - self.started:9.0f}s", "", "")
        return table

    def _shards(self) -> Table:
        table = Table(box=None)
        for column in ("member", "known up to", "events", "buffered", ""):
            table.add_column(column, justify="left" if column in ("member", "") else "right")
        for remote in self.stream.get("remotes", []):
            holds = remote["target"] == self.stream.get("slowestShard")
            watermark = remote["watermark"]
            table.add_row(
                remote["target"],
                f"{_clock(watermark.time)} + {watermark.inc}" if watermark else "none yet",
                f"{remote['events']:,}",
                f"{remote['bufferedBytes']:,} B",
                Text("◀ slowest shard", "yellow") if holds else "",
            )
        return table


def _clock(seconds: int) -> str:
    """Return a cluster time's second as a time of day, UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds))


def closing(verdicts: list[Verdict], program: str, *, secure: bool, outage: bool) -> str:
    """Return what was shown, and what to try next.

    Args:
        verdicts: what the readers got.
        program: how the shell finds `mergerouter`.
        secure: whether the demo had users and TLS.
        outage: whether a shard was killed.
    """
    shown = "Every change arrived once and in order, while a shard was added and got\ndocuments"
    shown += ", and while another shard was killed and came back." if outage else "."
    if any(verdict.wrong for verdict in verdicts):
        shown = "A reader differs from what was written: this is a defect. The logs are kept."
    elif not all(verdict.good for verdict in verdicts):
        shown = "The machine is too busy: a reader had not read everything when the demo ended."
    secured = " --secure" if secure else ""
    commands = [
        (f"demo --outage{secured}", "second act: a shard is killed and comes back"),
        (f"demo --keep{secured}", "leave it running, and connect to it"),
        ("check-config --help", "try the settings for a cluster of yours"),
        ("job run --help", "follow a collection into a table"),
    ]
    chosen = commands[1:] if outage else commands[:3]
    lines = "".join(f"  {f'{program} {flags}'}\n      {meaning}\n" for flags, meaning in chosen)
    return f"{shown}\nNext:\n{lines}docs/quickstart.md shows the same on your own cluster."


def verdict_table(verdicts: list[Verdict]) -> Table:
    """Return the demo's verdicts as a table."""
    table = Table(title="verdict", box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("reader", no_wrap=True)
    for heading in ("expected", "delivered", "lost", "doubled", "unknown", "misplaced"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in verdicts:
        counts = (
            verdict.written,
            verdict.delivered,
            verdict.lost,
            verdict.duplicated,
            verdict.unexpected,
            verdict.out_of_order,
        )
        figures = [f"{count:,}" for count in counts]
        table.add_row(verdict.reader, *figures, _mark(verdict))
    return table


def _mark(verdict: Verdict) -> Text:
    if verdict.wrong:
        return Text("WRONG", "bold red")
    return Text("good", "bold green") if verdict.good else Text("late", "bold yellow")
