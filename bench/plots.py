"""Plots of a run's figures, as PNG files."""

from pathlib import Path

import matplotlib as mpl

from bench.suite import Plot

mpl.use("Agg")

from matplotlib import pyplot as plt


def draw(plot: Plot, path: Path, caption: str) -> None:
    """Draw ``plot`` and write it to ``path``; ``caption``, the machine's name, stands below."""
    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    places = list(dict.fromkeys(x for points in plot.series.values() for x, _ in points))
    for number, (name, points) in enumerate(plot.series.items()):
        if plot.bars:
            width = 0.8 / len(plot.series)
            left = [places.index(x) + (number + 0.5) * width - 0.4 for x, _ in points]
            axes.bar(left, [y for _, y in points], width, label=name)
        else:
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
    if plot.bars:
        axes.set_xticks(range(len(places)), [str(place) for place in places])
    elif plot.log_x:
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:,}" for place in places])
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(plot.title)
    axes.set_xlabel(f"{plot.x}\n{caption}")
    axes.set_ylabel(plot.y)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
