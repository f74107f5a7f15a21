"""The sum of what a router's processes report of themselves."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bson.int64 import Int64

# Fields with the same meaning in every worker, or about the whole router: the first reply's value.
_NOT_SUMMED = frozenset(
    {
        ("pid",),
        ("uptime",),
        ("uptimeMillis",),
        ("uptimeEstimate",),
        ("connections", "available"),
        ("asserts", "rollovers"),
        ("mem", "bits"),
        ("ok",),
    }
)
# Latencies and ages of members are merged as the maximum.
_LARGEST_ENDS = ("Millis", "Seconds")
# Times, of which one may be None where it is unknown.
_LEAST = frozenset(
    {"watermark", "cursor", "departed", "started", "SSLServerCertificateExpirationDate"}
)
_LATEST = frozenset({"now"})


def sum_statuses(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one status for all workers together.

    Counts are added, lists concatenated, documents merged field by field; strings, dates and
    booleans are the first worker's. Fields whose name ends in "Millis" or "Seconds" take the
    maximum, watermarks and times of starts the minimum. The answering worker's own status is the
    first; none is modified.
    """
    summed = _together(list(statuses), ())
    assert isinstance(summed, dict)
    connections = summed.get("connections")
    if isinstance(connections, dict) and "available" in connections:
        first = statuses[0]["connections"]
        # The limit applies to the whole router: subtract the other workers' connections.
        others = connections["current"] - first["current"]
        connections["available"] = max(0, first["available"] - others)
    return summed


def _together(values: list[Any], path: tuple[str, ...]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        documents = [value for value in values if isinstance(value, Mapping)]
        names = {name: None for document in documents for name in document}
        return {
            name: _together(
                [document[name] for document in documents if name in document], (*path, name)
            )
            for name in names
        }
    if path and path[-1] in _LEAST | _LATEST:
        known = [_in_utc(value) for value in values if value is not None]
        return (min if path[-1] in _LEAST else max)(known, default=None)
    if isinstance(first, list):
        return [item for value in values if isinstance(value, list) for item in value]
    if isinstance(first, bool) or not isinstance(first, int | float) or path in _NOT_SUMMED:
        return first
    numbers = [value for value in values if isinstance(value, int | float)]
    whole = max(numbers) if path[-1].endswith(_LARGEST_ENDS) else sum(numbers)
    return Int64(whole) if isinstance(first, Int64) else whole


def _in_utc(time: Any) -> Any:
    """Return a time with its zone: dates in other workers' replies are in UTC and have none."""
    return time.replace(tzinfo=UTC) if isinstance(time, datetime) and not time.tzinfo else time
