"""What a suite of the benchmark is: figures it measures, tables and plots that show them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is made.

    Args:
        quick: a short run that shows that everything works; its figures are rough.
        runs: how often each figure is taken; the median counts.
        quiet: seconds without a write before those after which a quiet stream is measured.
        real_binaries: folder with mongod and mongos, whose figures are taken side by side.
        profile: folder for flame graphs of the router, where they are wanted.
        say: tells the user where the run is.
    """

    quick: bool = False
    runs: int = 3
    quiet: float = 10.0
    real_binaries: Path | None = None
    profile: Path | None = None
    say: Callable[[str], None] = print

    def scaled(self, full: int, quick: int) -> int:
        """Return ``quick`` in a quick run, else ``full``."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading and how a row's value is written, ``format`` wise."""

    heading: str
    key: str
    form: str = ""

    def text(self, row: dict[str, Any]) -> str:
        """Return the cell of ``row``: empty where the row has no such figure."""
        value = row.get(self.key)
        return "" if value is None else format(value, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows side by side under a title; ``note`` says what the reader must know."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over a common axis, or bars: each series is its points ``(x, y)``."""

    name: str
    title: str
    x: str
    y: str
    series: dict[str, list[tuple[Any, float]]]
    bars: bool = False
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a suite found: tables (whose rows are the raw figures) and plots of them."""

    tables: list[Table]
    plots: list[Plot] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {"tables": [asdict(table) for table in self.tables]}


@dataclass(frozen=True, slots=True)
class Suite:
    """One question that the benchmark answers. ``bench/NAME.py`` has it as ``SUITE``."""

    name: str
    question: str
    run: Callable[[Options], Outcome]
