"""The mongos answers any command that a client sends, and keeps working."""

import asyncio
from typing import Any

import bson
from bson import Binary, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from embedded.clients import Client
from embedded.cluster import EmbeddedCluster
from embedded.mongos.command_table import COMMANDS
from tests.harness.until import PATIENCE

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 31), 1 << 31),
    st.floats(),
    st.sampled_from(["", "c", "d.c", "shard0", "$x", "a.$.b", "\0"]),
    st.sampled_from(
        [MinKey(), MaxKey(), ObjectId(b"0" * 12), Regex("["), Timestamp(1, 1), Binary(b"1", 0)]
    ),
)
FIELDS = [
    "documents", "updates", "deletes", "filter", "query", "pipeline", "cursor", "lsid", "id",
    "txnNumber", "autocommit", "startTransaction", "q", "u", "limit", "multi", "upsert", "_id",
    "x", "key", "indexes", "to", "middle", "find", "bounds", "sort", "projection", "batchSize",
    "update", "remove", "new", "$set", "$match", "$group", "$or", "$in", "$gt", "collection",
    "cursors", "ordered", "stmtIds", "skip", "viewOn", "readConcern", "$clusterTime", "name",
    "dropTarget", "arrayFilters", "topologyVersion", "compression", "primaryShard",
]  # fmt: skip
names = st.sampled_from(FIELDS)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
commands = st.tuples(
    st.sampled_from(sorted(COMMANDS)),
    st.one_of(st.just("c"), st.just("sharded"), st.just(1), values),
    st.dictionaries(names, values, max_size=5),
)


async def send_all(sent: list[tuple[str, Any, dict[str, Any]]]) -> None:
    async with EmbeddedCluster(2, noop_interval=0) as cluster:
        client = Client()
        setup: dict[str, Any] = {"shardCollection": "d.sharded", "key": {"x": 1}}
        await cluster.mongos.run_command("admin", setup, client)
        for name, target, fields in sent:
            for database in ("d", "admin"):
                command = {name: target, **fields}
                async with asyncio.timeout(PATIENCE):
                    reply = await cluster.mongos.run_command(database, command, client)
                assert reply["ok"] in (0.0, 1.0)
                assert "$clusterTime" in reply
                bson.encode(reply)
        reply = await cluster.mongos.run_command("admin", {"ping": 1}, client)
        assert reply["ok"] == 1.0
        lsid = {"id": Binary(b"0" * 16, 4)}
        insert = {"insert": "other", "documents": [{"x": Int64(1)}], "lsid": lsid}
        reply = await cluster.mongos.run_command("d2", insert, client)
        assert reply["n"] == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(commands, min_size=1, max_size=12))
def test_every_command_gets_an_answer(sent: list[tuple[str, Any, dict[str, Any]]]) -> None:
    with capture_logs():  # internal failures are logged with a traceback, which takes a while
        asyncio.run(send_all(sent))
