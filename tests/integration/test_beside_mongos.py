"""The same commands through a real mongos and through the router: the same answers."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from bson import Binary, Decimal128, Int64, Timestamp

from tests.harness.clusters import start_real_cluster
from tests.harness.raw_client import RawClient, Reply
from tests.harness.routers import start_router

NOT_COMPARED = frozenset({"$clusterTime", "operationTime", "localTime", "topologyVersion"})


class Pair(NamedTuple):
    """Ports of a mongos and of a router that has it as its upstream."""

    mongos: int
    router: int


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with start_real_cluster(2, noop_interval=1) as cluster:
        options = {"enableTestCommands": "true"}
        router = start_router(cluster.configdb, cluster.mongos_uri, set_parameter=options)
        try:
            yield Pair(int(cluster.mongos.rpartition(":")[2]), router.port)
        finally:
            router.stop()


@asynccontextmanager
async def both(pair: Pair) -> AsyncIterator[tuple[RawClient, RawClient]]:
    async with (
        await RawClient.connect(pair.mongos) as mongos,
        await RawClient.connect(pair.router) as router,
    ):
        yield mongos, router


def compared(reply: Reply) -> Mapping[str, Any]:
    return {name: value for name, value in reply.items() if name not in NOT_COMPARED}


async def same(pair: Pair, database: str, command: dict[str, Any], **how: Any) -> Mapping[str, Any]:
    """Run the command on both, check that they answer alike, return the answer."""
    async with both(pair) as (mongos, router):
        expected = compared(await mongos.command(database, command, **how))
        assert compared(await router.command(database, command, **how)) == expected
    return expected


SIGNATURE: dict[str, Any] = {"hash": Binary(b"\0" * 20, 0), "keyId": Int64(0)}
PAST = Timestamp(1_700_000_000, 1)
CLIENT_TIMES: list[Any] = [
    5,
    None,
    {},
    [],
    {"clusterTime": 5},
    {"clusterTime": PAST},
    {"clusterTime": PAST, "signature": "junk"},
    {"clusterTime": PAST, "signature": {}},
    {"clusterTime": PAST, "signature": {"hash": "x", "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": b"1", "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": Binary(b"\0" * 20, 5), "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": Binary(b"\0" * 21, 0), "keyId": 0}},
    {"clusterTime": PAST, "signature": {"hash": b"\0" * 20}},
    {"clusterTime": PAST, "signature": {"hash": b"\0" * 20, "keyId": "x"}},
    {"clusterTime": PAST, "signature": {**SIGNATURE, "keyId": 1.5}},
    {"clusterTime": PAST, "signature": {**SIGNATURE, "keyId": Decimal128("1"), "pad": 1}, "pad": 1},
    {"clusterTime": Timestamp(0, 0), "signature": SIGNATURE},
]


@pytest.mark.parametrize("time", CLIENT_TIMES)
async def test_client_times(pair: Pair, time: Any) -> None:
    await same(pair, "admin", {"ping": 1, "$clusterTime": time})


async def test_client_times_far_ahead(pair: Pair) -> None:
    command = {"ping": 1, "$clusterTime": {"clusterTime": Timestamp(2**32 - 1, 1)}}
    await same(pair, "admin", command)
    command["$clusterTime"]["signature"] = SIGNATURE
    async with both(pair) as (mongos, router):
        replies = [await each.command("admin", command) for each in (mongos, router)]
    for reply in replies:
        assert (reply["code"], reply["codeName"]) == (205, "ClusterTimeFailsRateLimiter")
        assert reply["errmsg"].startswith("New $clusterTime, 4294967295, is too far from this node")


async def test_other_checks_come_before_client_times(pair: Pair) -> None:
    for command in (
        {"ping": 1, "apiVersion": "2", "$clusterTime": 5},
        {"getParameter": 1, "x": 1, "$clusterTime": 5},
        {"nosuch": 1, "$clusterTime": 5},
    ):
        await same(pair, "db", command)
