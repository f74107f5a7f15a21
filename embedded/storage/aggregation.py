"""Aggregation pipelines: the stages on single documents, and mongomock's for the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from embedded.errors import CommandError, not_implemented
from embedded.storage.bson_values import Document, copied
from embedded.storage.document_stages import DOCUMENT_STAGES, compiled
from embedded.storage.mongomock_rules import library_errors, run_stage
from embedded.storage.queries import sort_documents


def aggregate(
    documents: Iterable[Document], pipeline: Sequence[Mapping[str, Any]]
) -> list[Document]:
    """Run a pipeline over documents, without changing them.

    Raises:
        CommandError: 40324 for an unknown stage; 238 for a stage that is not implemented, such as
            those that use other collections.
    """
    current = list(documents)
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
        elif name in _ON_OTHER_COLLECTIONS:
            raise not_implemented(f"{name} is not implemented")
        else:
            current = run_stage(copied(current), name, argument)
    return current


_ON_OTHER_COLLECTIONS = frozenset({"$lookup", "$graphLookup", "$unionWith", "$out", "$merge"})


def _group(documents: list[Document], argument: Any) -> list[Document]:
    groups = run_stage(documents, "$group", argument)
    return [{"_id": group.pop("_id"), **group} for group in groups]


_STAGES: dict[str, Callable[[list[Document], Any], list[Document]]] = {
    "$sort": lambda documents, order: sort_documents(documents, order),
    "$limit": lambda documents, count: documents[:count],
    "$skip": lambda documents, count: documents[count:],
    "$group": _group,
}
