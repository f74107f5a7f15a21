"""The errors of embedded servers, with MongoDB's codes and messages."""

from typing import Any

from bson import json_util

from shard_client.errors import CommandError as CommandError
from shard_client.errors import ErrorCode as ErrorCode

TRANSIENT_TRANSACTION = "TransientTransactionError"
TRANSIENT_CODES = frozenset((
    ErrorCode.LockTimeout, ErrorCode.WriteConflict, ErrorCode.SnapshotUnavailable,
    ErrorCode.NoSuchTransaction,
))  # fmt: skip
"""Codes of errors in a transaction that get this label."""


def bad_value(message: str) -> CommandError:
    """Return error 2: an invalid argument."""
    return CommandError(ErrorCode.BadValue, message)


def failed_to_parse(message: str) -> CommandError:
    """Return error 9: a malformed command, update or query."""
    return CommandError(ErrorCode.FailedToParse, message)


def type_mismatch(message: str) -> CommandError:
    """Return error 14: a field of the wrong BSON type."""
    return CommandError(ErrorCode.TypeMismatch, message)


def namespace_not_found(message: str = "ns not found") -> CommandError:
    """Return error 26: the collection or view does not exist."""
    return CommandError(ErrorCode.NamespaceNotFound, message)


def namespace_exists(ns: str) -> CommandError:
    """Return error 48: the collection exists."""
    return CommandError(ErrorCode.NamespaceExists, f"Collection {ns} already exists.")


def cursor_not_found(cursor_id: int) -> CommandError:
    """Return error 43, with the server's message (docs/protocol.md#cursor-replies)."""
    return CommandError(ErrorCode.CursorNotFound, f"Cursor not found (id: {cursor_id}).")


def command_not_found(name: str) -> CommandError:
    """Return error 59: the command does not exist."""
    return CommandError(ErrorCode.CommandNotFound, f"no such command: '{name}'")


def shard_key_changed() -> CommandError:
    """Return error 20: an update of a shard key that is no retryable write of one document."""
    return CommandError(
        ErrorCode.IllegalOperation,
        "Must run update to shard key field with retryWrites: true, on one document, and outside "
        "of transactions",
    )


def write_conflict() -> CommandError:
    """Return error 112: two transactions wrote one document; the client may retry."""
    return CommandError(
        ErrorCode.WriteConflict,
        "WriteConflict error: this operation conflicted with another operation. Please retry your "
        "operation or multi-document transaction.",
        labels=[TRANSIENT_TRANSACTION],
    )


def no_such_transaction(message: str) -> CommandError:
    """Return error 251: the transaction was aborted or never existed."""
    return CommandError(ErrorCode.NoSuchTransaction, message, labels=[TRANSIENT_TRANSACTION])


def unknown_transaction(number: int, active: int) -> CommandError:
    """Return error 251: the session's latest transaction, ``active``, is another one."""
    return no_such_transaction(
        f"Given transaction number {number} does not match any in-progress transactions. The "
        f"active transaction number is {active}"
    )


def transaction_too_old(number: int, newest: int) -> CommandError:
    """Return error 225: the session has started a newer transaction or retryable write."""
    return CommandError(
        225,
        f"Cannot start transaction {number} on session because a newer transaction {newest} has "
        "already started.",
        code_name="TransactionTooOld",
        labels=[TRANSIENT_TRANSACTION],
    )


def transaction_started_before(number: int) -> CommandError:
    """Return error 117: a command starts the session's transaction again."""
    return CommandError(
        117,
        f"Only servers in a sharded cluster can start a new transaction at the active transaction "
        f"number {number}",
        code_name="ConflictingOperationInProgress",
    )


def not_in_transactions(command: str) -> CommandError:
    """Return error 263: the command does not exist in transactions of several documents."""
    text = f"Cannot run '{command}' in a multi-document transaction."
    return CommandError(ErrorCode.OperationNotSupportedInTransaction, text)


def object_too_large(size: int) -> CommandError:
    """Return error 10334: a document of ``size`` bytes, more than 16 MiB."""
    return CommandError(
        ErrorCode.BSONObjectTooLarge,
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and 16793600(16MB)",
    )


def internal_error(error: Exception) -> CommandError:
    """Return error 1: a defect of the embedded cluster, which is this command's error alone."""
    return CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")


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
