"""BSON's type names and numbers, for ``$type``."""

from typing import Any

from embedded.errors import bad_value
from shard_client.bson.values import MIN_KEY, TYPE_NAMES, type_name

_NUMBERS = {**TYPE_NAMES, -1: TYPE_NAMES[MIN_KEY]}


def has_type(value: Any, wanted: Any) -> bool:
    """Return whether ``value``, or an element of it, has one of the ``$type``s ``wanted``.

    Raises:
        CommandError: 2 BadValue for an unknown type.
    """
    names: set[str] = set()
    for kind in wanted if isinstance(wanted, list) else [wanted]:
        name = str(_NUMBERS.get(int(kind)) if isinstance(kind, int | float) else kind)
        if name == "number":
            names |= {"int", "long", "double", "decimal"}
        elif name in _NUMBERS.values():
            names.add(name)
        else:
            raise bad_value(f"Unknown type name alias: {kind}")
    if type_name(value) in names:
        return True
    return isinstance(value, list) and any(type_name(item) in names for item in value)
