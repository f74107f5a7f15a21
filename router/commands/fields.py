"""Check a command's fields, with the error messages of mongos's parser."""

from collections.abc import Mapping
from datetime import datetime
from re import Pattern
from typing import Any

from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

# Fields that any command can carry besides its own; mongos gives them no command-specific meaning.
GENERIC_FIELDS = frozenset(
    {
        "$audit", "$client", "$clusterTime", "$configServerState", "$configTime", "$db",
        "$oplogQueryData", "$queryOptions", "$readPreference", "$replData", "$topologyTime",
        "allowImplicitCollectionCreation", "apiDeprecationErrors", "apiStrict", "apiVersion",
        "autocommit", "clientOperationKey", "comment", "coordinator", "databaseVersion",
        "helloOk", "lsid", "maxTimeMS", "maxTimeMSOpOnly", "mayBypassWriteBlocking",
        "readConcern", "shardVersion", "startOrContinueTransaction", "startTransaction", "stmtId",
        "tracking_info", "txnNumber", "writeConcern",
    }
)  # fmt: skip

_INT32_MAX = 2**31 - 1

_BSON_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "bool"),
    (Int64, "long"),
    (int, "int"),
    (float, "double"),
    (Code, "javascript"),
    (str, "string"),
    (Mapping, "object"),
    ((list, tuple), "array"),
    ((Binary, bytes), "binData"),
    (ObjectId, "objectId"),
    ((datetime, DatetimeMS), "date"),
    (Timestamp, "timestamp"),
    ((Regex, Pattern), "regex"),
    (Decimal128, "decimal"),
    (MinKey, "minKey"),
    (MaxKey, "maxKey"),
)


def bson_type(value: Any) -> str:
    """Return MongoDB's name for the BSON type of a decoded value."""
    if value is None:
        return "null"
    for kinds, name in _BSON_NAMES:
        if isinstance(value, kinds):
            return name
    return "undefined"


def wrong_type(path: str, value: Any, expected: str) -> CommandError:
    """Return the error for a field of the wrong type; ``expected`` is in mongos's wording."""
    return CommandError(
        ErrorCode.TypeMismatch,
        f"BSON field '{path}' is the wrong type '{bson_type(value)}', expected {expected}",
    )


def check_known(command: Mapping[str, Any], name: str, known: frozenset[str]) -> None:
    """Refuse unknown fields; raises CommandError 40415."""
    for field in command:
        if field != name and field not in known and field not in GENERIC_FIELDS:
            raise CommandError(
                ErrorCode.IDLUnknownField, f"BSON field '{name}.{field}' is an unknown field."
            )


def required(command: Mapping[str, Any], name: str, field: str) -> Any:
    """Return a required field, which must not be null; raises CommandError 40414."""
    value = command.get(field)
    if value is None:
        raise CommandError(
            ErrorCode.IDLFailedToParse,
            f"BSON field '{name}.{field}' is missing but a required field",
        )
    return value


def text(command: Mapping[str, Any], name: str, field: str) -> str:
    """Return a required string field; raises CommandError."""
    value = required(command, name, field)
    if not isinstance(value, str):
        raise wrong_type(f"{name}.{field}", value, "type 'string'")
    return value


def whole_number(value: Any, path: str) -> int:
    """Return a number of any numeric type as an integer; raises CommandError."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise wrong_type(path, value, "types '[long, int, decimal, double']")
    try:
        return int(value.to_decimal() if isinstance(value, Decimal128) else value)
    except (ValueError, OverflowError) as error:
        raise CommandError(
            ErrorCode.BadValue, f"BSON field '{path}' has no finite value: {value}"
        ) from error


def at_least_zero(command: Mapping[str, Any], name: str, field: str) -> int | None:
    """Return an optional non-negative number; raises CommandError 51024, 2 or 14."""
    value = command.get(field)
    if value is None:
        return None
    number = whole_number(value, f"{name}.{field}")
    if field == "maxTimeMS" and not 0 <= number <= _INT32_MAX:
        raise CommandError(ErrorCode.BadValue, f"{number} value for {field} is out of range")
    if number < 0:
        raise CommandError(
            51024, f"BSON field '{field}' value must be >= 0, actual value '{number}'"
        )
    return number
