"""The interface of sharded clusters for tests, embedded or real."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import pymongo
from bson import MinKey

from tests.harness.server_settings import ROOT, ServerSettings
from tests.harness.until import Deadline

Client = pymongo.MongoClient[dict[str, Any]]

_DRAIN_SECONDS = 120.0


def shard(
    client: Client, namespace: str, key: Mapping[str, int], first: str, chunks: Mapping[Any, str]
) -> None:
    """Shard a new collection of a database whose primary shard is, or becomes, ``first``.

    Args:
        client: of the mongos or of a router.
        namespace: database and collection.
        key: the shard key.
        first: the shard with the documents below all ``chunks``.
        chunks: the shards of the others, by the values of the key's first field where they begin.
    """
    admin, (field, *others) = client.admin, key
    admin.command("enableSharding", namespace.partition(".")[0], primaryShard=first)
    admin.command("shardCollection", namespace, key=dict(key))
    for at, to in chunks.items():
        middle = {field: at, **dict.fromkeys(others, MinKey())}
        admin.command("split", namespace, middle=middle)
        admin.command("moveChunk", namespace, find=middle, to=to)


class TestCluster(ABC):
    """A running sharded cluster."""

    __test__ = False

    mongos: str
    """``host:port`` of the mongos."""

    configdb: str
    """The config server's host string."""

    shards: dict[str, str]
    """The shards by id, with their host strings."""

    @property
    @abstractmethod
    def mongos_uri(self) -> str:
        """The connection string of the mongos, with the login of ROOT if one is required."""

    @property
    @abstractmethod
    def real(self) -> bool:
        """Whether the cluster consists of MongoDB's own servers."""

    @abstractmethod
    def start_shard(self) -> tuple[str, str]:
        """Start another shard server without adding it; return its id and host string."""

    @abstractmethod
    def stop(self) -> None:
        """End all servers."""

    @abstractmethod
    def stop_member(self, name: str) -> None:
        """End a shard's server (``config``: the config server's) as a power cut would."""

    @abstractmethod
    def start_member(self, name: str) -> None:
        """Start a server that was stopped, with its data, at its address."""

    @abstractmethod
    def hang_member(self, name: str) -> None:
        """Make a server hang: it accepts connections but answers nothing."""

    @abstractmethod
    def wake_member(self, name: str) -> None:
        """Resume a hanging server."""

    @abstractmethod
    def kill_cursors(self, name: str) -> None:
        """Kill all cursors on a server."""

    def add_shard(self) -> tuple[str, str]:
        """Start another server and add it as a shard; return its id and host string."""
        name, host = self.start_shard()
        self.join_shard(name, host)
        return name, host

    def join_shard(self, name: str, host: str) -> None:
        """Add a running server as a shard."""
        with Client(self.mongos_uri) as client:
            client.admin.command("addShard", host, name=name)
        self.shards[name] = host

    def remove_shard(self, name: str) -> str:
        """Drain and remove a shard; its server keeps running. Return its host string.

        Its databases move to another shard.
        """
        other = next(each for each in self.shards if each != name)
        deadline = Deadline(_DRAIN_SECONDS)
        with Client(self.mongos_uri) as client:
            while (state := client.admin.command("removeShard", name))["state"] != "completed":
                deadline.check(f"{name} to drain: {state}")
                for database in state.get("dbsToMove", ()):
                    client.admin.command("movePrimary", database, to=other)
                time.sleep(0.05)
        return self.shards.pop(name)

    def create_root(self, settings: ServerSettings) -> None:
        """Create the user ROOT, which servers let a client of their own machine do."""
        with Client(settings.client_uri(self.mongos)) as client:
            client.admin.command("createUser", ROOT, pwd=ROOT, roles=[ROOT])

    @abstractmethod
    def direct(self, name: str, **options: Any) -> Client:
        """Return a client of one shard's server (``config``: the config server's)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
