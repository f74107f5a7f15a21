"""Events and filters for tests of what filters cost."""

from typing import Any

import bson

from router.filters.index import FilterIndex
from router.filters.stream_filter import compile_filter

Document = dict[str, Any]


def index_of(*matches: Document) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for owner, match in enumerate(matches):
        index.add(owner, compile_filter([{"$match": match}]))
    return index


def event(**fields: Any) -> bytes:
    return bson.encode({"operationType": "insert", "fullDocument": {"tenant": 1, **fields}})
