"""Selection of the documents that a statement applies to."""

from collections.abc import Iterator, Mapping
from typing import Any

from bson.regex import Regex

from embedded.storage.bson_values import MISSING, Document, id_key
from embedded.storage.collection import DocumentView
from embedded.storage.ordering import sort_key
from embedded.storage.queries import Matcher, is_operators


def select(view: DocumentView, matcher: Matcher) -> Iterator[Document]:
    """Yield the matching documents; a condition on ``_id`` reads only those with these ids."""
    return (document for document in _candidates(view, matcher.condition) if matcher(document))


def _candidates(view: DocumentView, condition: Mapping[str, Any]) -> Iterator[Document]:
    wanted = condition.get("_id", MISSING)
    if wanted is MISSING or isinstance(wanted, Regex):
        return view.documents()
    if not is_operators(wanted):
        return _present(view, [wanted])
    if "$eq" in wanted:
        return _present(view, [wanted["$eq"]])
    choices = wanted.get("$in")
    if isinstance(choices, list) and not any(isinstance(choice, Regex) for choice in choices):
        return _present(view, sorted(choices, key=sort_key))
    return view.documents()


def _present(view: DocumentView, ids: list[Any]) -> Iterator[Document]:
    documents = (view.get(key) for key in dict.fromkeys(id_key(identifier) for identifier in ids))
    return (document for document in documents if document is not None)
