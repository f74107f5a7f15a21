"""The parts of a benchmark suite: options, and an outcome of tables and plots."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    Args:
        quick: a short run that shows that everything works; its figures are rough.
        runs: how often each figure is taken; the median counts.
        quiet: seconds without a write before each write of a quiet stream.
        real_binaries: folder with mongod and mongos, to measure them side by side; None for none.
        profile: folder for flame graphs of the router; None for none.
        say: prints a line about the progress of the run.
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


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over a common axis, or bars; each series is a list of points ``(x, y)``."""

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
    """The results of a suite: tables, whose rows are the raw figures, and plots of them."""

    tables: list[Table]
    plots: list[Plot] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {"tables": [asdict(table) for table in self.tables]}


@dataclass(frozen=True, slots=True)
class Suite:
    """One question that the benchmark answers; ``bench/NAME.py`` defines it as ``SUITE``."""

    name: str
    question: str
    run: Callable[[Options], Outcome]
