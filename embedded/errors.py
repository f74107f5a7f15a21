"""The errors of embedded servers, with MongoDB's codes and messages."""

from typing import Any

from bson import json_util

from shard_client.errors import CommandError

TRANSIENT_TRANSACTION = "TransientTransactionError"


def bad_value(message: str) -> CommandError:
    """Return error 2: an invalid argument."""
    return CommandError(2, message)


def failed_to_parse(message: str) -> CommandError:
    """Return error 9: a malformed command, update or query."""
    return CommandError(9, message)


def type_mismatch(message: str) -> CommandError:
    """Return error 14: a field of the wrong BSON type."""
    return CommandError(14, message)


def namespace_not_found(message: str = "ns not found") -> CommandError:
    """Return error 26: the collection or view does not exist."""
    return CommandError(26, message)


def namespace_exists(ns: str) -> CommandError:
    """Return error 48: the collection exists."""
    return CommandError(48, f"Collection {ns} already exists.")


def cursor_not_found(cursor_id: int) -> CommandError:
    """Return error 43, with the server's message (docs/protocol.md#cursor-replies)."""
    return CommandError(43, f"Cursor not found (id: {cursor_id}).")


def command_not_found(name: str) -> CommandError:
    """Return error 59: the command does not exist."""
    return CommandError(59, f"no such command: '{name}'")


def shard_key_changed() -> CommandError:
    """Return error 20: an update of a shard key that is no retryable write of one document."""
    return CommandError(
        20,
        "Must run update to shard key field with retryWrites: true, on one document, and outside "
        "of transactions",
    )


def write_conflict() -> CommandError:
    """Return error 112: two transactions wrote one document; the client may retry."""
    return CommandError(
        112,
        "WriteConflict error: this operation conflicted with another operation. Please retry your "
        "operation or multi-document transaction.",
        labels=[TRANSIENT_TRANSACTION],
    )


def no_such_transaction(message: str) -> CommandError:
    """Return error 251: the transaction was aborted or never existed."""
    return CommandError(251, message, labels=[TRANSIENT_TRANSACTION])


def object_too_large(size: int) -> CommandError:
    """Return error 10334: a document of ``size`` bytes, more than 16 MiB."""
    return CommandError(
        10334,
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and 16793600(16MB)",
    )


def not_implemented(message: str) -> CommandError:
    """Return error 238: the embedded cluster lacks what the command needs."""
    return CommandError(238, message, code_name="NotImplemented")


def duplicate_key(ns: str, id_: Any) -> CommandError:
    """Return error 11000 for the index on ``_id``, with ``keyPattern`` and ``keyValue``."""
    shown = json_util.dumps(id_)
    return CommandError(
        11000,
        f"E11000 duplicate key error collection: {ns} index: _id_ dup key: {{ _id: {shown} }}",
        code_name="DuplicateKey",
        extra={"keyPattern": {"_id": 1}, "keyValue": {"_id": id_}},
    )
