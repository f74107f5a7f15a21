"""Updates by operators, replacements and pipelines, with their oplog entries.

Source: docs/protocol.md#events (updateDescription).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bson.objectid import ObjectId

from embedded.errors import CommandError, ErrorCode, failed_to_parse, not_implemented, type_mismatch
from embedded.storage.aggregation import aggregate
from embedded.storage.bson_values import MISSING, Document, copied, identical, value_at
from embedded.storage.diff import DiffLog, compute_diff
from embedded.storage.field_updates import appends, new_value
from embedded.storage.queries import is_operators


@dataclass(frozen=True, slots=True)
class Updated:
    """An update's result: the new document, and the oplog entry's ``o`` (None: no change)."""

    document: Document
    o: Document | None


class Update:
    """One update specification, compiled to be applied to many documents.

    Args:
        specification: an update document, a replacement, or a pipeline (a list).
        condition: the statement's filter, the base of an upsert.

    Raises:
        CommandError: 9 FailedToParse, 40 ConflictingUpdateOperators or 56 EmptyFieldName; 238 for
            paths with ``$``.
    """

    def __init__(self, specification: Any, condition: Mapping[str, Any]) -> None:
        if not isinstance(specification, Mapping | list):
            raise failed_to_parse("Update argument must be either an object or an array")
        self.specification: Any = specification
        self._condition = condition
        self.is_pipeline = isinstance(specification, list)
        self.is_replacement = not self.is_pipeline and not is_operators(specification)
        self._changes: list[tuple[str, str, Any]] = []
        if isinstance(specification, Mapping) and not self.is_replacement:
            self._changes = list(_changes(specification))
            _check_conflicts([path for _, path, _ in self._changes])

    def apply(self, document: Document) -> Updated:
        """Return the result for ``document``, which is not changed.

        Raises:
            CommandError: the update cannot be applied to this document.
        """
        if self.is_replacement:
            after = _replacement(document, self.specification)
            return Updated(after, None if identical(document, after) else after)
        if self.is_pipeline:
            after = self._run_pipeline(document)
            _check_id(document, after)
            if identical(document, after):
                return Updated(document, None)
            diff = compute_diff(document, after)
            return Updated(after, after if diff is None else {"$v": 2, "diff": diff})
        after, log = self._operate(document, inserting=False)
        if not log:
            return Updated(document, None)
        _check_id(document, after)
        return Updated(after, {"$v": 2, "diff": log.diff()})

    def upserted(self, new_id: ObjectId) -> Document:
        """Return the document that an upsert inserts, with ``new_id`` if it has no ``_id``."""
        base = _equalities(self._condition)
        if self.is_replacement:
            document = dict(self.specification)
            if "_id" not in document and "_id" in base:
                document["_id"] = base["_id"]
        elif self.is_pipeline:
            document = self._run_pipeline(base)
        else:
            document, _ = self._operate(base, inserting=True)
        identifier = document.pop("_id", new_id)
        return {"_id": identifier, **document}

    def _run_pipeline(self, document: Document) -> Document:
        for stage in self.specification:
            if not isinstance(stage, Mapping):
                raise type_mismatch("Each element of the 'pipeline' array must be an object")
            if not set(stage) <= _PIPELINE_STAGES:
                name = next(iter(stage), "")
                raise CommandError(
                    ErrorCode.InvalidOptions, f"{name} is not allowed to be used within an update"
                )
        [after] = aggregate([document], self.specification)
        if "_id" in document and "_id" not in after:
            after = {"_id": document["_id"], **after}
        return after

    def _operate(self, document: Document, *, inserting: bool) -> tuple[Document, DiffLog]:
        after: Document = copied(document)
        log = DiffLog()
        for operator, path, argument in self._changes:
            if operator == "$setOnInsert" and not inserting:
                continue
            before = value_at(after, path)
            value = new_value(operator, path, before, argument)
            _store(after, path, before, value)
            added = appends(operator, argument, before)
            if added and value is not MISSING:
                _log_appended(document, path, value, added, log)
            elif not identical(before, value):
                _log_change(document, after, path, before, value, log)
        return after, log


def _store(after: Document, path: str, before: Any, value: Any) -> None:
    if value is MISSING:
        if before is not MISSING:
            remove_at(after, path)
    elif not identical(before, value):
        set_at(after, path, value)


_PIPELINE_STAGES = frozenset(
    {"$set", "$addFields", "$unset", "$project", "$replaceRoot", "$replaceWith"}
)


def _is_at_or_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + ".")


def _changes(specification: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (operator, path, argument) sorted by path, the order in which servers apply them."""
    changes = []
    for operator, fields in specification.items():
        if not operator.startswith("$"):
            raise failed_to_parse(
                f"Unknown modifier: {operator}. Expected a valid update modifier or pipeline-style "
                "update specified as an array"
            )
        if not isinstance(fields, Mapping):
            raise failed_to_parse(
                f"Modifiers operate on fields but we found another type for {operator}"
            )
        changes += [(operator, path, argument) for path, argument in fields.items()]
    return iter(sorted(changes, key=lambda change: _path_order(change[1])))


def _path_order(path: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in path.split(".")]


def _check_conflicts(paths: list[str]) -> None:
    for path in paths:
        if "$" in path:
            raise not_implemented(f"the embedded cluster has no positional updates: {path}")
        if not path or ".." in path or path.endswith("."):
            raise CommandError(
                56,
                f"The update path '{path}' contains an empty field name",
                code_name="EmptyFieldName",
            )
    for first, second in pairwise(paths):
        if _is_at_or_under(second, first):
            raise CommandError(
                40,
                f"Updating the path '{second}' would create a conflict at '{first}'",
                code_name="ConflictingUpdateOperators",
            )


def _replacement(document: Document, replacement: Any) -> Document:
    identifier = replacement.get("_id", document["_id"])
    _check_id(document, {"_id": identifier})
    return {"_id": document["_id"]} | {k: v for k, v in replacement.items() if k != "_id"}


def _check_id(before: Document, after: Document) -> None:
    if not identical(before.get("_id"), after.get("_id")) and before.get("_id") != after.get("_id"):
        raise CommandError(
            66,
            "Performing an update on the path '_id' would modify the immutable field '_id'",
            code_name="ImmutableField",
        )


def _equalities(condition: Mapping[str, Any]) -> Document:
    """Return the document that a filter's equalities describe, the base of an upsert."""
    equalities: Document = {}
    for name, value in condition.items():
        if name == "$and":
            for item in value:
                equalities |= _equalities(item)
        elif name.startswith("$"):
            continue
        elif not is_operators(value):
            set_at(equalities, name, copied(value))
        elif "$eq" in value:
            set_at(equalities, name, copied(value["$eq"]))
        elif len(value.get("$in", ())) == 1 and len(value) == 1:
            set_at(equalities, name, copied(value["$in"][0]))
    return equalities


def set_at(document: Document, path: str, value: Any) -> None:
    """Set ``value`` at a dotted path, creating its parents.

    Raises:
        CommandError: 28 PathNotViable if a parent is neither a document nor an array.
    """
    *parents, leaf = path.split(".")
    holder: Any = document
    for part in parents:
        holder = _step(holder, part, path)
    if isinstance(holder, list):
        index = _index(leaf, path)
        holder.extend([None] * (index + 1 - len(holder)))
        holder[index] = value
    elif isinstance(holder, dict):
        holder[leaf] = value
    else:
        raise _not_viable(leaf, path)


def _step(holder: Any, part: str, path: str) -> Any:
    if isinstance(holder, dict):
        return holder.setdefault(part, {})
    if isinstance(holder, list):
        index = _index(part, path)
        if index >= len(holder):
            holder.extend([None] * (index - len(holder)))
            holder.append({})
        return holder[index]
    raise _not_viable(part, path)


def _index(part: str, path: str) -> int:
    if not part.isdigit() or int(part) > 1_500_000:
        raise _not_viable(part, path)
    return int(part)


def _not_viable(part: str, path: str) -> CommandError:
    return CommandError(
        28, f"Cannot create field '{part}' in element of path '{path}'", code_name="PathNotViable"
    )


def remove_at(document: Document, path: str) -> None:
    """Remove the field at a dotted path; an array's element becomes null."""
    parent, _, leaf = path.rpartition(".")
    holder = value_at(document, parent) if parent else document
    if isinstance(holder, list):
        holder[int(leaf)] = None
    elif isinstance(holder, dict):
        holder.pop(leaf, None)


def _log_change(
    document: Document, after: Document, path: str, before: Any, value: Any, log: DiffLog
) -> None:
    parts = path.split(".")
    if value is MISSING:
        if isinstance(value_at(after, path.rpartition(".")[0]), list):
            log.updated(document, parts, None)
        else:
            log.deleted(document, parts)
    elif before is MISSING:
        log.created(document, parts, after)
    else:
        log.updated(document, parts, value)


def _log_appended(
    document: Document, path: str, array: list[Any], added: int, log: DiffLog
) -> None:
    for index in range(len(array) - added, len(array)):
        log.updated(document, [*path.split("."), str(index)], array[index])
