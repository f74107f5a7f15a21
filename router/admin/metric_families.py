"""The forms of the router's metrics: gauges, counters and histograms with the router's prefix."""

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX: Final = "mergerouter_"


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels; ``name`` lacks the prefix, ``text`` describes it."""
    return GaugeMetricFamily(PREFIX + name, text, value)


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels; ``name`` lacks the prefix, ``text`` describes it."""
    return CounterMetricFamily(PREFIX + name, text, value)


def labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """Return a family with one label, given its values by the label's."""
    metric = family(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric


def buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Return the cumulative buckets of a histogram, given each bucket's count and its bound."""
    total = 0
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        cumulative.append((bound, total))
    return cumulative
