"""A backlog of large documents with small transactions in between, and the readers that drain it.

Its readers differ in their filters only, so that a router may read their stream once. Some of them
resume inside a transaction with small batches, while others drain the backlog.
"""

from collections.abc import Sequence
from itertools import groupby
from random import Random
from typing import Any

from bson import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.database import AsyncDatabase

from tests.differential.plans import Plan, Token, token_time

_COLLECTIONS = ("backlog", "beside")
"""Random steps never create, change or drop them: they accept every document."""
_BYTES = 17 << 20
"""More than what a router reads of a shared stream before it weighs whether sharing pays."""
_MOST = 1200
_DRAINERS, _RESUMERS = 2, 6
_FILTERS = 4
"""As many different filters share a stream by default, until it reads much more than they need."""
_LARGEST_TRANSACTION = 12


async def write(database: AsyncDatabase[dict[str, Any]], chance: Random) -> str:
    """Write a backlog and return its description. Raises PyMongoError."""
    for name in _COLLECTIONS:
        await database.create_collection(name)
        if chance.random() < 0.2:
            command = {"shardCollection": f"{database.name}.{name}", "key": {"_id": "hashed"}}
            await database.client.admin.command(command)
    size = chance.choice((10, 20, 60)) << 10
    left = min(_MOST, _BYTES // size)
    while left > 0:
        many = chance.randrange(20, 120)
        pad = {"k": 1, "pad": "a" * size}
        made = [{"_id": f"{left}.{n}", **pad} for n in range(many)]
        await database[_COLLECTIONS[0]].insert_many(made)
        left -= many
        await _write_small(database, chance, f"{left}.small")
    return f"of documents of {size} bytes"


async def _write_small(database: AsyncDatabase[dict[str, Any]], chance: Random, name: str) -> None:
    inserts = [
        (chance.choice(_COLLECTIONS), {"_id": f"{name}{number}", "k": 1, "n": number})
        for number in range(chance.randrange(2, _LARGEST_TRANSACTION))
    ]

    async def insert(session: AsyncClientSession) -> None:
        for collection, document in inserts:
            await database[collection].insert_one(document, session=session)

    async with database.client.start_session() as session:
        await session.with_transaction(insert)


def readers(chance: Random, database: str, tokens: Sequence[Token], start: Timestamp) -> list[Plan]:
    """Return the plans of streams that are read at the same time.

    Args:
        chance: makes all random choices.
        database: the database of the backlog.
        tokens: the tokens of its events, in their order.
        start: a cluster time before the backlog.
    """
    groups = groupby(tokens, key=lambda token: token_time(token["_data"]))
    inside = [token for _, group in groups for token in list(group)[:-1]]
    options = chance.choice(({}, {"fullDocument": "whenAvailable"}))
    target = chance.choice((1, 1, _COLLECTIONS[0]))
    plans = []
    for number in range(_DRAINERS + _RESUMERS):
        resumes = bool(inside) and number >= _DRAINERS
        at = {"resumeAfter": chance.choice(inside)} if resumes else {"startAtOperationTime": start}
        wanted = {"fullDocument.n": {"$lt": _LARGEST_TRANSACTION + number % _FILTERS}}
        stages = [{"$changeStream": {**options, **at}}, {"$match": wanted}]
        cursor = {"batchSize": chance.choice((0, 1))}
        size = chance.randrange(1, 4)
        more: list[dict[str, Any]] = [{"maxTimeMS": 500}]
        if resumes:
            more = [{"maxTimeMS": 500, "batchSize": size}, *more * chance.randrange(1, 4)]
        plans.append(
            Plan(
                f"backlog {number}",
                database,
                {"aggregate": target, "pipeline": stages, "cursor": cursor},
                more,
                pause=chance.choice((0.0, 0.02, 0.1, 0.3)) if resumes else 0.0,
            )
        )
    return plans
