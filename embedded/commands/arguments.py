"""The types of command arguments; a name has the same type in all commands."""

from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from embedded.errors import type_mismatch
from embedded.storage.type_names import type_name

_NUMBER = (int, float)
_FLAG = (bool, int, float)

_KINDS: dict[str, tuple[type, ...]] = {
    "$clusterTime": (dict,),
    "arrayFilters": (list,),
    "autocommit": _FLAG,
    "batchSize": _NUMBER,
    "capped": _FLAG,
    "changeStreamPreAndPostImages": (dict,),
    "client": (dict,),
    "commitTimestamp": (Timestamp,),
    "compression": (list,),
    "cursor": (dict,),
    "cursors": (list,),
    "data": (dict,),
    "deletes": (list,),
    "documents": (list,),
    "dropTarget": (bool, int, float, bytes),
    "fields": (dict,),
    "filter": (dict,),
    "indexes": (list,),
    "limit": _NUMBER,
    "lsid": (dict,),
    "maxAwaitTimeMS": _NUMBER,
    "maxClusterTime": (Timestamp,),
    "maxTimeMS": _NUMBER,
    "new": _FLAG,
    "ordered": _FLAG,
    "pipeline": (list,),
    "projection": (dict,),
    "query": (dict,),
    "readConcern": (dict,),
    "singleBatch": _FLAG,
    "skip": _NUMBER,
    "sort": (dict,),
    "startTransaction": _FLAG,
    "stmtId": (int,),
    "stmtIds": (list,),
    "to": (str,),
    "topologyVersion": (dict,),
    "txnNumber": (int,),
    "updates": (list,),
    "upsert": _FLAG,
    "validator": (dict,),
    "viewOn": (str,),
}

_STATEMENT_KINDS: dict[str, tuple[type, ...]] = {
    "arrayFilters": (list,),
    "key": (dict,),
    "limit": _NUMBER,
    "multi": _FLAG,
    "name": (str,),
    "q": (dict,),
    "sort": (dict,),
    "u": (dict, list),
    "upsert": _FLAG,
}

_OF_DOCUMENTS = frozenset(
    {"arrayFilters", "deletes", "documents", "indexes", "pipeline", "updates"}
)
_STATEMENTS = frozenset({"deletes", "indexes", "updates"})


def check_arguments(name: str, command: Mapping[str, Any]) -> None:
    """Check the types of a command's arguments.

    Raises:
        CommandError: 14 TypeMismatch for an argument of the wrong type.
    """
    for field, value in command.items():
        if field == name or value is None:
            continue
        _check(f"{name}.{field}", value, _KINDS.get(field))
        if field in _OF_DOCUMENTS:
            _check_documents(f"{name}.{field}", value, are_statements=field in _STATEMENTS)
    numbers = command.get("stmtIds") or ()
    for number in numbers:
        _check(f"{name}.stmtIds", number, (int,))
    lsid = command.get("lsid")
    if lsid is not None:
        _check(f"{name}.lsid.id", lsid.get("id"), (bytes,))
        _check(f"{name}.lsid.uid", lsid.get("uid", b""), (bytes,))


def _check_documents(path: str, values: list[Any], *, are_statements: bool) -> None:
    for index, value in enumerate(values):
        _check(f"{path}.{index}", value, (dict,))
        if are_statements:
            for field, inner in value.items():
                if inner is not None:
                    _check(f"{path}.{field}", inner, _STATEMENT_KINDS.get(field))
                if field == "arrayFilters":
                    _check_documents(f"{path}.{field}", inner or [], are_statements=False)


def _check(path: str, value: Any, kinds: tuple[type, ...] | None) -> None:
    if kinds is None:
        return
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise type_mismatch(
            f"BSON field '{path}' is the wrong type '{type_name(value)}', expected type "
            f"'{_expected(kinds)}'"
        )


def _expected(kinds: tuple[type, ...]) -> str:
    names = {dict: "object", list: "array", str: "string", bytes: "binData", int: "long"}
    return names.get(kinds[0], "timestamp" if kinds[0] is Timestamp else "bool")
