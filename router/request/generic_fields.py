"""Fields that any command may have, ``maxTimeMS`` and ``readConcern``, as mongos checks them."""

from collections.abc import Mapping
from typing import Any, Final

from bson.decimal128 import Decimal128
from bson.timestamp import Timestamp

from router.bson_text import type_name
from router.request.field_errors import wrong_type, wrong_type_inside
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

NUMBERS: Final = ("long", "int", "decimal", "double")
_LONGEST_TIME: Final = 2**31 - 1
_INT64_END: Final = 2**63
_NO_TIME: Final = Timestamp(0, 0)
_TYPES: Final[Mapping[str, tuple[type[Any], str]]] = {
    "afterClusterTime": (Timestamp, "timestamp"),
    "atClusterTime": (Timestamp, "timestamp"),
    "afterOpTime": (Mapping, "object"),
    "level": (str, "string"),
}
_OF_CAUSAL_READS: Final = ("majority", "local", "snapshot", None)
_LEVELS: Final = frozenset({"local", "majority", "linearizable", "available", "snapshot"})
_PROVENANCE: Final = "ReadConcernArgs::parse.provenance"
_PROVENANCES: Final = frozenset(
    {"clientSupplied", "implicitDefault", "customDefault", "getLastErrorDefaults",
     "internalWriteDefault"}
)  # fmt: skip


def check_generic_fields(command: Mapping[str, Any]) -> None:
    """Check the read concern and the time limit of a command; raises mongos's CommandError."""
    if "readConcern" in command:
        _check_read_concern(command["readConcern"])
    if "maxTimeMS" in command:
        _check_max_time(next(iter(command)), command["maxTimeMS"])


def _check_max_time(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        if name in ("aggregate", "getMore") and value is not None:
            raise wrong_type(f"{name}.maxTimeMS", value, *NUMBERS)
        raise CommandError(ErrorCode.BadValue, "maxTimeMS must be a number")
    number = as_int64(value)
    if not 0 <= number <= _LONGEST_TIME:
        raise CommandError(ErrorCode.BadValue, f"{number} value for maxTimeMS is out of range")
    if isinstance(value, float) and value != number:
        raise CommandError(ErrorCode.BadValue, "maxTimeMS has non-integral value")


def as_int64(value: float | Decimal128) -> int:
    """Return a number as servers convert it: the nearest one in range, 0 for NaN.

    Fractions are cut off, but those of decimals are rounded, half to even.
    """
    number: Any = value.to_decimal() if isinstance(value, Decimal128) else value
    if number != number:
        return 0
    number = max(-_INT64_END, min(number, _INT64_END - 1))
    return round(number) if isinstance(value, Decimal128) else int(number)


def exact_integer(value: Any, name: str) -> int:
    """Return a number that must be that of a 64-bit integer; raises CommandError 14 or 2."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'Expected field "{name}" to have numeric type, but found {type_name(value)}',
        )
    number: Any = value.to_decimal() if isinstance(value, Decimal128) else value
    if number != number or abs(number) >= _INT64_END or int(number) != number:
        shown = f"{value}.0" if isinstance(value, float) and "." not in str(value) else value
        raise CommandError(
            ErrorCode.BadValue,
            f'Expected field "{name}" to have a value exactly representable as a 64-bit integer, '
            f"but found {name}: {shown}",
        )
    return int(number)


def _check_read_concern(concern: Any) -> None:
    if not isinstance(concern, Mapping):
        raise CommandError(ErrorCode.FailedToParse, "readConcern field should be an object")
    for name, value in concern.items():
        _check_option(name, value)
    level, after = concern.get("level"), concern.get("afterClusterTime")
    if after is not None and "afterOpTime" in concern:
        raise _invalid("Can not specify both afterClusterTime and afterOpTime")
    if after is not None and "atClusterTime" in concern:
        raise _invalid(
            "Specifying a timestamp for readConcern snapshot in a causally consistent session is "
            "not allowed. See https://docs.mongodb.com/manual/core/"
            "read-isolation-consistency-recency/#causal-consistency"
        )
    if after is not None and level not in _OF_CAUSAL_READS:
        raise _invalid(
            "afterClusterTime field can be set only if level is equal to majority, local, or "
            "snapshot"
        )
    if "afterOpTime" in concern and level == "snapshot":
        raise _invalid("afterOpTime field cannot be set if level is equal to snapshot")
    if "atClusterTime" in concern and level != "snapshot":
        raise _invalid("atClusterTime field can be set only if level is equal to snapshot")
    for name in ("afterClusterTime", "atClusterTime"):
        if concern.get(name) == _NO_TIME:
            raise _invalid(f"{name} cannot be a null timestamp")


def _check_option(name: str, value: Any) -> None:
    if name in _TYPES:
        kind, expected = _TYPES[name]
        if not isinstance(value, kind):
            raise wrong_type_inside(name, value, expected)
        if name == "afterOpTime":
            _check_op_time(value)
        if name == "level" and value not in _LEVELS:
            raise CommandError(
                ErrorCode.FailedToParse,
                "readConcern.level must be either 'local', 'majority', 'linearizable', "
                "'available', or 'snapshot'",
            )
    elif name != "provenance":
        raise _invalid(f"Unrecognized option in readConcern: {name}")
    elif value is not None and not isinstance(value, str):
        raise wrong_type(_PROVENANCE, value, "string")
    elif value is not None and value not in _PROVENANCES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{value}' for field '{_PROVENANCE}' is not a valid value.",
        )


def _check_op_time(value: Mapping[str, Any]) -> None:
    for field in ("ts", "t"):
        if field not in value:
            raise CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{field}"')
        if field == "ts" and not isinstance(value[field], Timestamp):
            raise wrong_type_inside(field, value[field], "timestamp")
    exact_integer(value["t"], "t")


def _invalid(message: str) -> CommandError:
    return CommandError(ErrorCode.InvalidOptions, message)
