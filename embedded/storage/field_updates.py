"""The effect of each update operator on one field's value."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.timestamp import Timestamp

from embedded.errors import bad_value, type_mismatch
from embedded.storage.bson_values import MISSING, is_long
from embedded.storage.mongomock_rules import update_array
from embedded.storage.ordering import sort_key
from embedded.storage.queries import Matcher, is_operators, matches
from embedded.storage.type_names import type_name
from shard_client.errors import CommandError


def new_value(operator: str, path: str, value: Any, argument: Any, now: float) -> Any:
    """Return the field's value after ``operator``; MISSING if the field is absent then.

    Args:
        operator: the update operator.
        path: the field's path, for messages.
        value: the current value, or MISSING; it is not changed.
        argument: the operator's argument.
        now: the time in seconds since 1970.

    Raises:
        CommandError: as a server does.
    """
    if operator in ("$set", "$setOnInsert"):
        return argument
    if operator == "$unset":
        return MISSING
    rule = _RULES.get(operator)
    if rule is not None:
        return rule(path, value, argument)
    if operator == "$currentDate":
        return _current_date(argument, now)
    if operator in _ARRAY_OPERATORS:
        return _array_update(operator, path, value, argument)
    raise CommandError(
        9,
        f"Unknown modifier: {operator}. Expected a valid update modifier or pipeline-style update "
        "specified as an array",
        code_name="FailedToParse",
    )


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
        if isinstance(value, Decimal128) or isinstance(argument, Decimal128):
            left, right = _decimal(value), _decimal(argument)
            return Decimal128(exact(left, right))
        result = exact(value, argument)
        if isinstance(result, float):
            return result
        if not -(1 << 63) <= result < 1 << 63:
            raise bad_value(f"Failed to apply {operator} operations to current value: overflow")
        return Int64(result) if is_long(value) or is_long(argument) else int(result)

    return compute


def _decimal(number: Any) -> Any:
    return (
        number.to_decimal()
        if isinstance(number, Decimal128)
        else Decimal128(str(number)).to_decimal()
    )


def _require_number(value: Any, message: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise type_mismatch(message)


def _extreme(keep_smaller: bool) -> Callable[[str, Any, Any], Any]:
    def compute(_path: str, value: Any, argument: Any) -> Any:
        if value is MISSING:
            return argument
        smaller = sort_key(argument) < sort_key(value)
        larger = sort_key(argument) > sort_key(value)
        return argument if (smaller if keep_smaller else larger) else value

    return compute


def _bits(path: str, value: Any, argument: Any) -> Any:
    result = 0 if value is MISSING else value
    if isinstance(result, bool) or not isinstance(result, int):
        raise bad_value(f"Cannot apply $bit to a value of non-integral type at {path}")
    for name, operand in argument.items():
        if name == "and":
            result &= operand
        elif name == "or":
            result |= operand
        elif name == "xor":
            result ^= operand
        else:
            raise bad_value(f"The $bit modifier only supports 'and', 'or', and 'xor', not '{name}'")
    return Int64(result) if any(map(is_long, argument.values())) else result


def _current_date(argument: Any, now: float) -> Any:
    kind = argument.get("$type") if isinstance(argument, dict) else "date"
    if kind == "timestamp":
        return Timestamp(int(now), 1)
    if kind != "date":
        raise bad_value("The '$type' string field is required to be 'date' or 'timestamp'")
    moment = datetime.fromtimestamp(now, UTC).replace(tzinfo=None)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _pull(path: str, value: Any, argument: Any) -> Any:
    if value is MISSING:
        return MISSING
    _require_array(path, value, "Cannot apply $pull to a non-array value")
    if is_operators(argument):
        return [item for item in value if not matches({"v": argument}, {"v": item})]
    if isinstance(argument, dict):
        matcher = Matcher(argument)
        return [item for item in value if not (isinstance(item, dict) and matcher(item))]
    wanted = sort_key(argument)
    return [item for item in value if sort_key(item) != wanted]


def _require_array(path: str, value: Any, otherwise: str | None = None) -> None:
    if not isinstance(value, list):
        raise bad_value(
            otherwise or f"The field '{path}' must be an array but is of type {type_name(value)}"
        )


_ARRAY_OPERATORS = frozenset({"$push", "$addToSet", "$pullAll", "$pop"})


def _array_update(operator: str, path: str, value: Any, argument: Any) -> Any:
    if value is not MISSING:
        _require_array(path, value)
    elif operator in ("$pop", "$pullAll"):
        return MISSING
    return update_array(operator, value, argument)


_RULES: dict[str, Callable[[str, Any, Any], Any]] = {
    "$inc": _arithmetic("$inc", lambda a, b: a + b),
    "$mul": _arithmetic("$mul", lambda a, b: a * b),
    "$min": _extreme(keep_smaller=True),
    "$max": _extreme(keep_smaller=False),
    "$bit": _bits,
    "$pull": _pull,
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
