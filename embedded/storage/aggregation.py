"""Aggregation pipelines, through mongomock's stages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mongomock import aggregate as mongomock_aggregate

from embedded.storage.bson_values import Document, copied, value_at
from embedded.storage.queries import Matcher, library_errors, process_pipeline, sort_documents
from shard_client.errors import CommandError

CollectionReader = Callable[[str], Iterable[Document]]


class _Databases:
    """What $lookup needs of mongomock's database: collections by name, with ``find``."""

    def __init__(self, read: CollectionReader | None) -> None:
        self._read = read

    def get_collection(self, name: str) -> "_Readable":
        return _Readable(self._read(name) if self._read else ())

    __getitem__ = get_collection


class _Readable:
    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = documents

    def find(self, condition: Mapping[str, Any] | None = None) -> list[Document]:
        matcher = Matcher(condition or {})
        return [document for document in self._documents if matcher(document)]


def aggregate(
    documents: Iterable[Document],
    pipeline: Sequence[Mapping[str, Any]],
    *,
    read: CollectionReader | None = None,
) -> list[Document]:
    """Run a pipeline over documents, which stay as they are.

    ``read`` gives the documents of another collection of the database ($lookup, $unionWith).
    Raises CommandError: 40324 for an unknown stage, 238 for one that is missing here.
    """
    current = list(documents)
    private = False
    for stage in pipeline:
        if not isinstance(stage, Mapping) or len(stage) != 1:
            raise CommandError(
                40323, "A pipeline stage specification object must contain exactly one field."
            )
        [(name, argument)] = stage.items()
        own = _STAGES.get(name)
        with library_errors():
            if own is not None:
                current = own(current, argument)
                continue
            if name == "$unionWith":
                current += list(_union(argument, read))
                continue
            name, argument = _spelled_for_mongomock(name, argument)
            if name not in mongomock_aggregate._PIPELINE_HANDLERS:
                raise CommandError(40324, f"Unrecognized pipeline stage name: '{name}'")
            if not private and name in _STAGES_THAT_WRITE:
                current, private = [copied(document) for document in current], True
            current = list(process_pipeline(current, _Databases(read), [{name: argument}], None))
    return current


_STAGES_THAT_WRITE = frozenset({"$addFields", "$set", "$lookup", "$unwind", "$graphLookup"})


def _union(argument: Any, read: CollectionReader | None) -> list[Document]:
    name = argument if isinstance(argument, str) else argument["coll"]
    inner = [] if isinstance(argument, str) else argument.get("pipeline", [])
    return aggregate(read(name) if read else (), inner, read=read)


def _match(documents: list[Document], condition: Any) -> list[Document]:
    matcher = Matcher(condition)
    return [document for document in documents if matcher(document)]


def _without(documents: list[Document], fields: Any) -> list[Document]:
    paths = [fields] if isinstance(fields, str) else list(fields)
    result = [copied(document) for document in documents]
    for document in result:
        for path in paths:
            *parents, leaf = path.split(".")
            holder = value_at(document, ".".join(parents)) if parents else document
            for item in holder if isinstance(holder, list) else [holder]:
                if isinstance(item, dict):
                    item.pop(leaf, None)
    return result


def _set_fields(documents: list[Document], fields: Any) -> list[Document]:
    removed = [name for name, value in fields.items() if value == "$$REMOVE"]
    kept = {name: value for name, value in fields.items() if name not in removed}
    result = [copied(document) for document in documents]
    if kept:
        result = list(process_pipeline(result, _Databases(None), [{"$set": kept}], None))
    return _without(result, removed) if removed else result


def _sort_by_count(documents: list[Document], expression: Any) -> list[Document]:
    grouped = {"_id": expression, "count": {"$sum": 1}}
    return aggregate(documents, [{"$group": grouped}, {"$sort": {"count": -1}}])


_STAGES: dict[str, Callable[[list[Document], Any], list[Document]]] = {
    "$match": _match,
    "$sort": lambda documents, order: sort_documents(documents, order),
    "$limit": lambda documents, count: documents[:count],
    "$skip": lambda documents, count: documents[count:],
    "$unset": _without,
    "$set": _set_fields,
    "$addFields": _set_fields,
    "$sortByCount": _sort_by_count,
    "$count": lambda documents, name: [{name: len(documents)}] if documents else [],
}


def _spelled_for_mongomock(name: str, argument: Any) -> tuple[str, Any]:
    """Write a stage that mongomock lacks as one that it has."""
    if name == "$replaceWith":
        return "$replaceRoot", {"newRoot": argument}
    return name, argument
