"""Aggregation pipelines: the stages of change streams, and mongomock's for the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from embedded.storage.bson_values import MISSING, Document, copied
from embedded.storage.expressions import Expression
from embedded.storage.mongomock_rules import ReadableCollection, library_errors, run_stage
from embedded.storage.projection import Transformation, add_fields, project, unset
from embedded.storage.queries import Matcher, sort_documents
from shard_client.errors import CommandError

CollectionReader = Callable[[str], Iterable[Document]]


class _Databases:
    """The collections that $lookup reads."""

    def __init__(self, read: CollectionReader | None) -> None:
        self._read = read

    def get_collection(self, name: str) -> ReadableCollection:
        return ReadableCollection(self._read(name) if self._read else (), Matcher)

    __getitem__ = get_collection


def aggregate(
    documents: Iterable[Document],
    pipeline: Sequence[Mapping[str, Any]],
    *,
    read: CollectionReader | None = None,
) -> list[Document]:
    """Run a pipeline over documents, without changing them.

    ``read`` returns the documents of another collection of the database ($lookup, $unionWith).

    Raises:
        CommandError: 40324 for an unknown stage; 238 for a stage that is not implemented.
    """
    current = list(documents)
    private = False
    for stage in pipeline:
        if not isinstance(stage, Mapping) or len(stage) != 1:
            raise CommandError(
                40323, "A pipeline stage specification object must contain exactly one field."
            )
        [(name, argument)] = stage.items()
        if name in _STAGES:
            with library_errors():
                current = _STAGES[name](current, argument)
        elif name == "$unionWith":
            with library_errors():
                current = current + _union(argument, read)
        elif name in ("$out", "$merge"):
            raise CommandError(238, f"{name} is not implemented", code_name="NotImplemented")
        else:
            if not private and name in _STAGES_THAT_WRITE:
                current, private = [copied(document) for document in current], True
            current = run_stage(current, name, argument, _Databases(read))
    return current


_STAGES_THAT_WRITE = frozenset({"$lookup", "$unwind", "$graphLookup"})


def _union(argument: Any, read: CollectionReader | None) -> list[Document]:
    name = argument if isinstance(argument, str) else argument["coll"]
    inner = [] if isinstance(argument, str) else argument.get("pipeline", [])
    return aggregate(read(name) if read else (), inner, read=read)


def _match(documents: list[Document], condition: Any) -> list[Document]:
    matcher = Matcher(condition)
    return [document for document in documents if matcher(document)]


def _each(
    make: Callable[[Any], Transformation],
) -> Callable[[list[Document], Any], list[Document]]:
    """Make a stage from a transformation of one document."""

    def run(documents: list[Document], argument: Any) -> list[Document]:
        transform = make(argument)
        return [transform(document) for document in documents]

    return run


def _replace_root(argument: Any) -> Transformation:
    if not isinstance(argument, Mapping) or "newRoot" not in argument:
        raise CommandError(40231, "no newRoot specified for the $replaceRoot stage")
    return _replace_with(argument["newRoot"])


def _replace_with(argument: Any) -> Transformation:
    expression = Expression(argument)

    def replaced(document: Document) -> Document:
        value = expression.evaluate(document)
        if not isinstance(value, dict):
            raise CommandError(
                40228, "'newRoot' expression must evaluate to an object, but resulting value was: "
                f"{'MISSING' if value is MISSING else value}",
            )  # fmt: skip
        return value

    return replaced


def _group(documents: list[Document], argument: Any) -> list[Document]:
    groups = run_stage(documents, "$group", argument)
    return [{"_id": group.pop("_id"), **group} for group in groups]


def _count(documents: list[Document], name: Any) -> list[Document]:
    if not isinstance(name, str) or not name or name.startswith("$") or "." in name:
        raise CommandError(40156, "the count field must be a non-empty string, no path")
    return [{name: len(documents)}] if documents else []


def _sort_by_count(documents: list[Document], expression: Any) -> list[Document]:
    grouped = {"_id": expression, "count": {"$sum": 1}}
    return aggregate(documents, [{"$group": grouped}, {"$sort": {"count": -1}}])


_STAGES: dict[str, Callable[[list[Document], Any], list[Document]]] = {
    "$match": _match,
    "$sort": lambda documents, order: sort_documents(documents, order),
    "$limit": lambda documents, count: documents[:count],
    "$skip": lambda documents, count: documents[count:],
    "$unset": _each(unset),
    "$set": _each(add_fields),
    "$addFields": _each(add_fields),
    "$project": _each(project),
    "$replaceRoot": _each(_replace_root),
    "$replaceWith": _each(_replace_with),
    "$group": _group,
    "$sortByCount": _sort_by_count,
    "$count": _count,
}
