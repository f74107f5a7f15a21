"""Any command gets a reply or one of MongoDB's errors."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from bson import Int64, ObjectId, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded.commands.request import COMMANDS
from shard_client.errors import CommandError
from tests.unit.embedded.members import Driver

junk = st.sampled_from(
    [0, 1, -1, 1.5, "", "c", "$x", "$a.b", None, True, [], {}, [1], [{}], [None], ["a"], {"a": 1},
     {"$x": 1}, {"": 1}, {"$in": 1}, Int64(5), ObjectId(), Timestamp(1, 1), b"", {"id": b"x" * 16},
     {"level": "majority", "afterClusterTime": 1}, [[]], {"a": {"$gt": {}}}, {"a": {"$regex": 1}},
     {"a": {"$elemMatch": 1}}, {"$and": 1}, {"$set": 1}, {"$set": {"a": 1}}, {"$inc": {"a": "x"}},
     {"$push": {"a": {"$each": 1}}}, {"$pull": {"a": {"$x": 1}}}, {"$set": {"a..b": 1}},
     [{"$set": 1}], [{"$match": 1}], [{"$sort": 1}], [{"$limit": "x"}], [{"$group": 1}],
     [{"$project": 1}], [{"$lookup": 1}], [{"$unwind": 1}], [{"$count": 1}], [{"$skip": {}}],
     [{"$unionWith": 1}], [{"$facet": 1}], [{"$collStats": 1}], [{"$documents": 1}],
     [{"$changeStream": 1}], [{"$sortByCount": {"$x": 1}}], [{"$sample": 1}], [{"$bit": 1}]]
)  # fmt: skip
words = st.sampled_from(
    ["filter", "query", "sort", "projection", "fields", "skip", "limit", "batchSize", "pipeline",
     "cursor", "documents", "updates", "deletes", "update", "remove", "new", "upsert", "indexes",
     "index", "to", "viewOn", "validator", "key", "cursors", "stmtIds", "stmtId", "arrayFilters",
     "maxTimeMS", "readConcern", "data", "maxClusterTime", "lsid", "collection", "changes",
     "topologyVersion", "compression", "ordered", "singleBatch", "nameOnly", "size", "capped",
     "changeStreamPreAndPostImages", "txnNumber", "autocommit", "startTransaction"]
)  # fmt: skip
statements = st.dictionaries(
    st.sampled_from(["q", "u", "multi", "upsert", "limit", "arrayFilters", "sort", "key", "name"]),
    junk,
    max_size=4,
)
arguments = st.dictionaries(words, junk | st.lists(statements, min_size=1, max_size=2), max_size=4)
NEED_AN_ADDRESS = {"hello", "isMaster", "ismaster", "serverStatus"}
names = sorted(COMMANDS.keys() - NEED_AN_ADDRESS)


@pytest.mark.timeout(60)
@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(names), target=junk | st.just("c"), fields=arguments)
def test_every_command_gets_an_answer(name: str, target: Any, fields: dict[str, Any]) -> None:
    async def body() -> None:
        driver = Driver()
        await driver.run({"insert": "c", "documents": [{"_id": 1, "a": [1, {"b": 2}]}]})
        with suppress(CommandError):
            await driver.run({name: target, **fields})

    asyncio.run(body())
