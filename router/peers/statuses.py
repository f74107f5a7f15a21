"""One serverStatus out of those of all workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from bson.int64 import Int64

# What every worker says of the same thing, or of the whole: the first one's answer stands.
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
# Of members' distances and ages the whole is the worst.
_LARGEST_ENDS = ("Millis", "Seconds")


def sum_statuses(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all workers together would say of themselves.

    Counts are added, lists joined, documents summed field by field; names, dates and switches are
    the first worker's. Fields that tell a time, by their names, are the largest.

    Args:
        statuses: the replies, the answering worker's own first; none is changed.
    """
    summed = _together(list(statuses), ())
    assert isinstance(summed, dict)
    connections = summed.get("connections")
    if isinstance(connections, dict) and "available" in connections:
        first = statuses[0]["connections"]
        # The limit is on the whole: the others' connections leave so many fewer.
        others = connections["current"] - first["current"]
        connections["available"] = max(0, first["available"] - others)
    return summed


def _together(values: list[Any], path: tuple[str, ...]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        documents = [value for value in values if isinstance(value, Mapping)]
        names = {name: None for document in documents for name in document}
        return {
            name: _together([each[name] for each in documents if name in each], (*path, name))
            for name in names
        }
    if isinstance(first, list):
        return [item for value in values if isinstance(value, list) for item in value]
    if isinstance(first, bool) or not isinstance(first, int | float) or path in _NOT_SUMMED:
        return first
    numbers = [value for value in values if isinstance(value, int | float)]
    whole = max(numbers) if path[-1].endswith(_LARGEST_ENDS) else sum(numbers)
    return Int64(whole) if isinstance(first, Int64) else whole
