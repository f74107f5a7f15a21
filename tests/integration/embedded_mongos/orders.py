"""A collection of orders, spread over three shards by region."""

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster

SHARDS = ["shard0", "shard1", "shard2"]


def move(client: Client, region: str, to: str) -> None:
    client.admin.command(
        "moveChunk", "shop.orders", find={"region": region, "_id": 0}, to=to, _waitForDelete=True
    )


def ids_on(cluster: TestCluster, shard: str) -> list[Any]:
    with cluster.direct(shard) as direct:
        return sorted(document["_id"] for document in direct.shop.orders.find())


def code_of(error: pytest.ExceptionInfo[OperationFailure]) -> int | None:
    return error.value.code


def fill(orders: Any) -> None:
    orders.insert_many([{"_id": i, "region": "ahpz"[i % 4], "n": i} for i in range(12)])
