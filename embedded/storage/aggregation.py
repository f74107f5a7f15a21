"""Aggregation pipelines: the stages on single documents, and mongomock's for the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from embedded.storage.bson_values import Document, copied
from embedded.storage.document_stages import DOCUMENT_STAGES, compiled
from embedded.storage.mongomock_rules import ReadableCollection, library_errors, run_stage
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
        if name in DOCUMENT_STAGES:
            run = compiled(stage)
            changed = (run(document) for document in current)
            current = [document for document in changed if document is not None]
        elif name in _STAGES:
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
    "$sort": lambda documents, order: sort_documents(documents, order),
    "$limit": lambda documents, count: documents[:count],
    "$skip": lambda documents, count: documents[count:],
    "$group": _group,
    "$sortByCount": _sort_by_count,
    "$count": _count,
}
