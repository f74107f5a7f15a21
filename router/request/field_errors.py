"""mongos's errors about the fields of a command, and of the documents in it."""

from typing import Any

from router.bson_text import type_name
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


def unknown_field(path: str) -> CommandError:
    """Return the error for an unknown field at ``path``."""
    return CommandError(ErrorCode.IDLUnknownField, f"BSON field '{path}' is an unknown field.")


def missing_field(path: str) -> CommandError:
    """Return the error for a required field at ``path`` that is missing."""
    message = f"BSON field '{path}' is missing but a required field"
    return CommandError(ErrorCode.IDLFailedToParse, message)


def wrong_type(path: str, value: Any, *expected: str) -> CommandError:
    """Return the error for a field of the wrong type; ``expected`` are MongoDB's type names."""
    # The server closes the quote before the bracket.
    types = f"types '[{', '.join(expected)}']" if len(expected) > 1 else f"type '{expected[0]}'"
    return CommandError(
        ErrorCode.TypeMismatch,
        f"BSON field '{path}' is the wrong type '{type_name(value)}', expected {types}",
    )


def negative(name: str, number: int) -> CommandError:
    """Return the error for a number below zero."""
    message = f"BSON field '{name}' value must be >= 0, actual value '{number}'"
    return CommandError(51024, message)
