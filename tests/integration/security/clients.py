"""Users of graded rights, their connections, and the commands that tests compare."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pymongo.errors import OperationFailure, PyMongoError

from tests.harness.clusters import Client, TestCluster
from tests.harness.routers import start_router
from tests.harness.server_settings import write_secret

USERS: dict[str, list[Any]] = {
    "reader": [{"role": "read", "db": "db"}],
    "everywhere": ["readAnyDatabase"],
    "writer": [{"role": "readWrite", "db": "db"}],
    "nobody": [],
    "monitor": ["clusterMonitor"],
    "admin": ["clusterAdmin"],
    "host": ["hostManager"],
}

STREAM: list[dict[str, Any]] = [{"$changeStream": {}}]


class Servers(NamedTuple):
    """The addresses of a mongos and of routers: with that mongos as upstream, and without."""

    mongos: str
    router: str
    alone: str
    cluster: TestCluster


@contextmanager
def start_routers(cluster: TestCluster, key_file: Path, folder: Path) -> Iterator[Servers]:
    """Create the users on a secured cluster, and start routers with files in ``folder``."""
    password = write_secret(folder / "password", "swordfish\n")
    admin = Client(cluster.mongos_uri).admin
    for user, roles in USERS.items():
        admin.command("createUser", user, pwd=user, roles=roles)
    # The router's own user on the mongos looks documents up.
    admin.command("createUser", "router", pwd="swordfish", roles=["readAnyDatabase"])
    for database in ("db", "other"):
        admin.client[database].c.insert_one({})
    options = {"userCacheInvalidationIntervalSecs": 1, "authFailedDelayMs": 0}
    config = folder / "router.yaml"
    config.write_text(
        f"security:\n  keyFile: {key_file}\n  user: router\n  passwordFile: {password}\n"
    )
    upstream = f"mongodb://{cluster.mongos}/"
    with (
        start_router(cluster.configdb, upstream, set_parameter=options, config=config) as router,
        start_router(cluster.configdb, keyFile=key_file, set_parameter=options) as alone,
    ):
        yield Servers(
            cluster.mongos, f"127.0.0.1:{router.port}", f"127.0.0.1:{alone.port}", cluster
        )


def stream(target: Any, pipeline: list[Any] = STREAM, **fields: Any) -> dict[str, Any]:
    return {"aggregate": target, "pipeline": pipeline, "cursor": {}, **fields}


def client(address: str, user: str | None, **options: Any) -> Client:
    login = {"username": user, "password": user} if user is not None else {}
    return Client(f"mongodb://{address}/", **login, **options)


def answer(connected: Client, database: str, command: dict[str, Any]) -> Any:
    """Return the code and the message of a command's answer, without what differs each time."""
    try:
        connected[database].command(dict(command))
    except OperationFailure as error:
        message = str((error.details or {}).get("errmsg"))
        message = re.sub(r",? ?(lsid|\$clusterTime|\$db): .*", "", message)
        return error.code, re.sub(r"\d{9,}|:\d{4,5}|[0-9a-f]{24,}", "…", message)
    except PyMongoError as error:
        return type(error).__name__
    return "ok"


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])
