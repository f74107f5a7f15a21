"""Arguments of the commands of a login, read field by field as servers do (IDL)."""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from bson.int64 import Int64

from embedded.errors import bad_value, type_mismatch
from embedded.storage.type_names import type_name
from shard_client.errors import CommandError

Parser = Callable[[str, Any], Any]
"""Returns the value of a field, given its path and what the client sent; raises CommandError."""

_GENERIC = frozenset(
    {
        "$db", "lsid", "$clusterTime", "$readPreference", "$audit", "$client", "readConcern",
        "writeConcern", "maxTimeMS", "comment", "txnNumber", "autocommit", "startTransaction",
        "stmtId", "apiVersion", "apiStrict", "apiDeprecationErrors",
    }
)  # fmt: skip


def parse(
    command: Mapping[str, Any], name: str, required: Mapping[str, Parser], **optional: Parser
) -> dict[str, Any]:
    """Return the arguments of the command called ``name``; a null counts as absent.

    Args:
        command: the command.
        name: its name.
        required: the arguments that it must have.
        optional: further arguments.

    Raises:
        CommandError: for the first bad field: 40415 for an unknown one, 14 TypeMismatch for a
            wrong type; or 40414 for the first required one that is missing.
    """
    known = {**required, **optional}
    found: dict[str, Any] = {}
    for field, value in command.items():
        if field == name or field in _GENERIC:
            continue
        if field not in known:
            raise CommandError(40415, f"BSON field '{name}.{field}' is an unknown field.")
        if value is not None or known[field] is payload:
            found[field] = known[field](f"{name}.{field}", value)
    for field in required:
        if field not in found:
            raise missing(name, field)
    return found


def text(path: str, value: Any) -> str:
    """Parse a string."""
    if not isinstance(value, str):
        raise wrong_type(path, value, "type 'string'")
    return value


def whole_number(path: str, value: Any) -> int:
    """Parse an int."""
    if isinstance(value, bool) or not isinstance(value, int) or isinstance(value, Int64):
        raise wrong_type(path, value, "type 'int'")
    return value


def document(path: str, value: Any) -> Mapping[str, Any]:
    """Parse an object."""
    if not isinstance(value, Mapping):
        raise wrong_type(path, value, "type 'object'")
    return value


def array(path: str, value: Any) -> list[Any]:
    """Parse an array."""
    if not isinstance(value, list):
        raise wrong_type(path, value, "type 'array'")
    return value


def anything(_path: str, value: Any) -> Any:
    """Parse a value of any type."""
    return value


def payload(_path: str, value: Any) -> bytes:
    """Parse the payload of a SASL step: binary data, or a string of base64."""
    if isinstance(value, bytes):
        return bytes(value)
    if not isinstance(value, str):
        raise bad_value(
            f"Invalid SASLPayload type. Expected Base64 or BinData, got: {type_name(value)}"
        )
    if len(value.encode()) % 4:
        raise CommandError(10270, "Failed decoding SASL payload: invalid base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise CommandError(
            40537, "Failed decoding SASL payload: Invalid base64 character"
        ) from None


def missing(name: str, field: str) -> CommandError:
    """Return the error for a required field that a command does not have."""
    return CommandError(40414, f"BSON field '{name}.{field}' is missing but a required field")


def wrong_type(path: str, value: Any, expected: str) -> CommandError:
    """Return the error for a field of the wrong type; ``expected`` names the right one."""
    return type_mismatch(
        f"BSON field '{path}' is the wrong type '{type_name(value)}', expected {expected}"
    )
