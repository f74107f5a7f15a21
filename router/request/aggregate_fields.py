"""The fields of an ``aggregate`` command around its pipeline (docs/protocol.md#opening)."""

from collections.abc import Mapping
from typing import Any, Final

from router.bson_text import type_name
from router.request.field_errors import (
    missing_field,
    negative,
    not_boolean,
    unknown_field,
    wrong_type,
)
from router.request.generic_fields import NUMBERS, as_int64, check_generic_fields
from router.request.read_preference import check_read_preference
from router.request.stages import check_document, check_shape
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_DOCUMENTS: Final = ("collation", "let", "readConcern", "writeConcern", "$_passthroughToShard")
_FLAGS: Final = ("allowDiskUse", "needsMerge", "fromMongos", "fromRouter")
_NOT_STRICT: Final = ("explain", "collectionUUID", "$_passthroughToShard")
_NUMBERS: Final = (int, float)

# The fields that the router understands. Servers may know others, which the router cannot check: a
# command with such a field goes to the upstream, if there is one.
_KNOWN: Final = frozenset(
    {
        "aggregate", "pipeline", "cursor", "explain", "maxTimeMS", "bypassDocumentValidation",
        "hint", "collectionUUID", *_DOCUMENTS, *_FLAGS, "comment", "lsid", "txnNumber",
        "autocommit", "startTransaction", "apiVersion", "apiStrict", "apiDeprecationErrors", "$db",
        "$clusterTime", "$readPreference",
    }
)  # fmt: skip


def check_aggregate(database: str, command: Mapping[str, Any]) -> str | None:
    """Check the command's fields in their order, then the presence of the required fields.

    Return the name of its collection, None if it is on a database. Raises mongos's CommandError.
    """
    if "$readPreference" in command:
        check_read_preference(command["$readPreference"])
    if database == "local":
        raise CommandError(ErrorCode.IllegalOperation, "Can't use 'local' database through mongos")
    collection = _collection(database, command.get("aggregate"))
    for name, value in command.items():
        if name not in _KNOWN:
            raise unknown_field(f"aggregate.{name}")
        if name in _NOT_STRICT and command.get("apiStrict"):
            raise CommandError(
                ErrorCode.APIStrictError,
                f"BSON field 'aggregate.{name}' is not allowed with apiStrict:true.",
            )
        if name == "pipeline":
            check_shape(value)
        elif name == "cursor":
            _check_cursor(value)
        elif value is not None or name in _FLAGS:
            _check_field(name, value)
    if "pipeline" not in command:
        raise missing_field("aggregate.pipeline")
    if "cursor" not in command and not command.get("explain"):
        raise CommandError(
            ErrorCode.FailedToParse,
            "The 'cursor' option is required, except for aggregate with the explain argument",
        )
    if command.get("needsMerge") and not (command.get("fromMongos") or command.get("fromRouter")):
        raise CommandError(
            ErrorCode.FailedToParse, "Cannot specify 'needsMerge' without 'fromMongos'"
        )
    return collection


def check_for_change_stream(command: Mapping[str, Any]) -> None:
    """Check the fields that only other aggregates may use; raises mongos's CommandError.

    A change stream is opened outside transactions, with read concern majority and without a
    collection UUID.
    """
    if command.get("autocommit") is False or command.get("startTransaction"):
        raise CommandError(
            ErrorCode.OperationNotSupportedInTransaction,
            "Operation not permitted in transaction :: caused by :: Aggregation stage "
            "$changeStream cannot run within a multi-document transaction.",
        )
    if command.get("collectionUUID") is not None:
        raise CommandError(4928900, "collectionUUID is not supported for a change stream")
    check_generic_fields(command)
    concern = command.get("readConcern", {"level": "majority"})
    # Without a level, a read after a time has that of a change stream.
    level = concern.get("level", "majority" if "afterClusterTime" in concern else "local")
    if level != "majority":
        raise CommandError(
            ErrorCode.InvalidOptions,
            f'Command aggregate does not support {{ readConcern: {{ level: "{level}", '
            'provenance: "clientSupplied" } } :: caused by :: Aggregation stage $changeStream '
            "cannot run with a readConcern other than 'majority'. Current readConcern: "
            f"{level}",
        )


def _collection(database: str, target: Any) -> str | None:
    if isinstance(target, str):
        if not target or target.startswith(".") or "\0" in target:
            raise CommandError(
                ErrorCode.InvalidNamespace, f"Invalid namespace specified '{database}.{target}'"
            )
        return target
    if isinstance(target, _NUMBERS) and not isinstance(target, bool) and target == 1:
        return None
    if type_name(target) not in ("int", "long", "double", "decimal"):
        raise CommandError(
            ErrorCode.TypeMismatch, f"collection name has invalid type: {type_name(target)}"
        )
    raise CommandError(
        ErrorCode.FailedToParse,
        "Invalid command format: the 'aggregate' field must specify a collection name or 1",
    )


def _check_cursor(cursor: Any) -> None:
    if not isinstance(cursor, Mapping):
        raise CommandError(ErrorCode.TypeMismatch, "cursor field must be missing or an object")
    for name, value in cursor.items():
        if name != "batchSize":
            raise unknown_field(f"cursor.{name}")
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            raise wrong_type("cursor.batchSize", value, *NUMBERS)
        if value < 0:
            raise negative(name, as_int64(value))


def _check_field(name: str, value: Any) -> None:
    if name in _DOCUMENTS:
        check_document(name, value)
        if name == "$_passthroughToShard":
            _check_passthrough(value)
    elif name in _FLAGS and not isinstance(value, bool):
        raise not_boolean(name, value)
    elif name == "maxTimeMS" and isinstance(value, _NUMBERS) and value < 0:
        raise negative(name, as_int64(value))
    elif name == "bypassDocumentValidation" and not isinstance(value, bool | int | float):
        raise wrong_type("aggregate.bypassDocumentValidation", value, "bool", *NUMBERS)
    elif name == "hint" and not isinstance(value, str | Mapping):
        raise CommandError(ErrorCode.FailedToParse, "Hint must be a string or an object")
    elif name == "explain" and not isinstance(value, bool):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"explain must be a boolean, not {type_name(value)}",
        )


def _check_passthrough(value: Mapping[str, Any]) -> None:
    for name in value:
        if name != "shard":
            raise unknown_field(f"aggregate.$_passthroughToShard.{name}")
    if not isinstance(value.get("shard"), str):
        raise missing_field("$_passthroughToShard.shard")
