"""Users of graded rights, their connections, and the commands that tests compare."""

import re
from typing import Any, NamedTuple

import pymongo
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster

USERS: dict[str, list[Any]] = {
    "reader": [{"role": "read", "db": "db"}],
    "everywhere": ["readAnyDatabase"],
    "writer": [{"role": "readWrite", "db": "db"}],
    "nobody": [],
    "monitor": ["clusterMonitor"],
    "admin": ["clusterAdmin"],
    "host": ["hostManager"],
}
OPENS_NO_STREAMS = (
    59,
    "this endpoint does not serve change streams; open them through mergerouter, or on a shard",
)
"""The answer of the embedded mongos to a stream that the user may open."""

STREAM: list[dict[str, Any]] = [{"$changeStream": {}}]


class Servers(NamedTuple):
    """The addresses of a mongos and of routers: with that mongos as upstream, and without."""

    mongos: str
    router: str
    alone: str
    cluster: TestCluster


def stream(target: Any, pipeline: list[Any] = STREAM, **fields: Any) -> dict[str, Any]:
    return {"aggregate": target, "pipeline": pipeline, "cursor": {}, **fields}


def client(address: str, user: str | None, **options: Any) -> Client:
    login = {"username": user, "password": user} if user is not None else {}
    return pymongo.MongoClient(f"mongodb://{address}/", **login, **options)


def answer(connected: Client, database: str, command: dict[str, Any]) -> Any:
    """Return the part of a command's reply in which servers are compared."""
    try:
        connected[database].command(dict(command))
    except OperationFailure as error:
        message = str((error.details or {}).get("errmsg"))
        return error.code, re.sub(r"(, lsid: .*)? }( }|)$", "", message)
    return "ok"


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
