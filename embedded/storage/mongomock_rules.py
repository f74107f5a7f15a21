"""mongomock's query, projection, array and pipeline rules; the only module that wraps it.

Only the rules are used, never mongomock's storage. The callers (``queries``, ``field_updates``,
``aggregation``) correct its differences from MongoDB.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import mongomock
from bson.errors import InvalidDocument
from mongomock import aggregate, filtering
from pymongo.errors import OperationFailure

from embedded.errors import CommandError, bad_value, not_implemented
from embedded.storage.bson_values import MISSING, Document, copied

NOTHING: Any = filtering.NOTHING  # type: ignore[attr-defined]
"""mongomock's marker for an absent field."""

Filterer: Any = filtering._Filterer
"""The class of mongomock's matcher; its ``_operator_map`` holds the operators."""


_MISUSE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    InvalidDocument,
    LookupError,
    TypeError,
    ValueError,
)
"""The exceptions that mongomock raises for invalid arguments."""


@contextmanager
def library_errors() -> Iterator[None]:
    """Convert mongomock's exceptions into a server's errors.

    Raises:
        CommandError: the block raised OperationFailure, NotImplementedError or an error of _MISUSE.
    """
    try:
        yield
    except OperationFailure as error:
        raise CommandError(error.code or 2, str(error.args[0])) from error
    except NotImplementedError as error:
        raise not_implemented(str(error)) from error
    except _MISUSE as error:
        raise bad_value(f"{type(error).__name__}: {error}") from error


@cache
def _collection() -> Any:
    return mongomock.MongoClient()["rules"]["rules"]


def run_stage(documents: list[Document], name: str, argument: Any) -> list[Document]:
    """Run one pipeline stage.

    Raises:
        CommandError: 40324 for an unknown stage; an error of the stage.
    """
    if name not in aggregate._PIPELINE_HANDLERS:
        raise CommandError(40324, f"Unrecognized pipeline stage name: '{name}'")
    run: Any = aggregate.process_pipeline
    with library_errors():
        return list(run(documents, None, [{name: argument}], None))


def update_array(operator: str, value: Any, argument: Any) -> Any:
    """Return an array after $push, $addToSet, $pullAll or $pop (MISSING: no array yet)."""
    holder = {} if value is MISSING else {"v": copied(value)}
    with library_errors():
        _collection()._apply_update_document(holder, {}, {operator: {"v": argument}}, False)
    return holder.get("v", MISSING)
