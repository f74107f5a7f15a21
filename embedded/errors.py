"""The errors that embedded servers answer with, as MongoDB words them."""

from collections.abc import Mapping
from typing import Any

from bson import json_util

from shard_client.errors import CommandError

TRANSIENT_TRANSACTION = "TransientTransactionError"


def bad_value(message: str) -> CommandError:
    """Error 2: an argument that makes no sense."""
    return CommandError(2, message, code_name="BadValue")


def failed_to_parse(message: str) -> CommandError:
    """Error 9: a command, update or query that cannot be read."""
    return CommandError(9, message, code_name="FailedToParse")


def type_mismatch(message: str) -> CommandError:
    """Error 14: a field of the wrong BSON type."""
    return CommandError(14, message, code_name="TypeMismatch")


def namespace_not_found(message: str = "ns not found") -> CommandError:
    """Error 26: no such collection or view."""
    return CommandError(26, message, code_name="NamespaceNotFound")


def namespace_exists(ns: str) -> CommandError:
    """Error 48: the collection is there already."""
    return CommandError(48, f"Collection {ns} already exists.", code_name="NamespaceExists")


def cursor_not_found(cursor_id: int) -> CommandError:
    """Error 43, worded as servers do (docs/protocol.md, section 2)."""
    return CommandError(43, f"Cursor not found (id: {cursor_id}).", code_name="CursorNotFound")


def command_not_found(name: str) -> CommandError:
    """Error 59: no such command."""
    return CommandError(59, f"no such command: '{name}'", code_name="CommandNotFound")


def write_conflict() -> CommandError:
    """Error 112: two transactions wrote one document; the client may try the whole again."""
    return CommandError(
        112,
        "WriteConflict error: this operation conflicted with another operation. Please retry your "
        "operation or multi-document transaction.",
        code_name="WriteConflict",
        labels=[TRANSIENT_TRANSACTION],
    )


def no_such_transaction(message: str) -> CommandError:
    """Error 251: the transaction was aborted, or never was."""
    return CommandError(251, message, code_name="NoSuchTransaction", labels=[TRANSIENT_TRANSACTION])


def object_too_large(size: int) -> CommandError:
    """Error 10334: a document of ``size`` bytes, more than 16 MiB."""
    return CommandError(
        10334,
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and 16793600(16MB)",
        code_name="BSONObjectTooLarge",
    )


def duplicate_key(
    ns: str, index: str, pattern: Mapping[str, Any], value: Mapping[str, Any]
) -> CommandError:
    """Error 11000, with ``keyPattern`` and ``keyValue``."""
    shown = ", ".join(f"{k}: {json_util.dumps(v)}" for k, v in value.items())
    return CommandError(
        11000,
        f"E11000 duplicate key error collection: {ns} index: {index} dup key: {{ {shown} }}",
        code_name="DuplicateKey",
        extra={"keyPattern": dict(pattern), "keyValue": dict(value)},
    )
