"""The effect of each update operator on one field's value."""

from collections.abc import Callable
from typing import Any

from bson.int64 import Int64

from embedded.errors import bad_value, not_implemented, type_mismatch
from embedded.storage.bson_values import MISSING, is_long
from embedded.storage.mongomock_rules import update_array
from embedded.storage.ordering import sort_key
from shard_client.bson.values import type_name


def new_value(operator: str, path: str, value: Any, argument: Any) -> Any:
    """Return the field's value after ``operator``; MISSING if the field is absent then.

    Args:
        operator: the update operator.
        path: the field's path, for messages.
        value: the current value, or MISSING; it is not changed.
        argument: the operator's argument.

    Raises:
        CommandError: as a server does; 238 for an operator that the embedded cluster does not have.
    """
    if operator in ("$set", "$setOnInsert"):
        return argument
    if operator == "$unset":
        return MISSING
    rule = _RULES.get(operator)
    if rule is not None:
        return rule(path, value, argument)
    if operator in _ARRAY_OPERATORS:
        return _array_update(operator, path, value, argument)
    raise not_implemented(f"the embedded cluster has no {operator}")


def _arithmetic(operator: str, exact: Callable[[Any, Any], Any]) -> Callable[[str, Any, Any], Any]:
    def compute(path: str, value: Any, argument: Any) -> Any:
        _require_number(argument, f"Cannot {operator} with non-numeric argument: {{{path}}}")
        if value is MISSING:
            return argument if operator == "$inc" else exact(argument, 0)
        _require_number(
            value,
            f"Cannot apply {operator} to a value of non-numeric type. Field '{path}' has "
            f"non-numeric type {type_name(value)}",
        )
        result = exact(value, argument)
        if isinstance(result, float):
            return result
        if not -(1 << 63) <= result < 1 << 63:
            raise bad_value(f"Failed to apply {operator} operations to current value: overflow")
        return Int64(result) if is_long(value) or is_long(argument) else int(result)

    return compute


def _require_number(value: Any, message: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise type_mismatch(message)


def _extreme(keep_smaller: bool) -> Callable[[str, Any, Any], Any]:
    def compute(_path: str, value: Any, argument: Any) -> Any:
        if value is MISSING:
            return argument
        smaller = sort_key(argument) < sort_key(value)
        larger = sort_key(argument) > sort_key(value)
        return argument if (smaller if keep_smaller else larger) else value

    return compute


_ARRAY_OPERATORS = frozenset({"$push", "$addToSet", "$pull", "$pullAll", "$pop"})


def _array_update(operator: str, path: str, value: Any, argument: Any) -> Any:
    if value is not MISSING:
        if not isinstance(value, list):
            raise bad_value(
                f"The field '{path}' must be an array but is of type {type_name(value)}"
            )
    elif operator in ("$pop", "$pull", "$pullAll"):
        return MISSING
    return update_array(operator, value, argument)


_RULES: dict[str, Callable[[str, Any, Any], Any]] = {
    "$inc": _arithmetic("$inc", lambda a, b: a + b),
    "$mul": _arithmetic("$mul", lambda a, b: a * b),
    "$min": _extreme(keep_smaller=True),
    "$max": _extreme(keep_smaller=False),
}


def appends(operator: str, argument: Any, before: Any) -> int | None:
    """Return how many elements a ``$push`` appends, None if it does anything else.

    Appending to a non-empty array is logged element by element; other changes log the array whole.
    """
    if operator != "$push" or not isinstance(before, list) or not before:
        return None
    if not (isinstance(argument, dict) and "$each" in argument):
        return 1
    if "$position" in argument or "$sort" in argument or "$slice" in argument:
        return None
    return len(argument["$each"])
