"""The servers of this process, and how the embedded mongos calls those of the cluster."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from bson.timestamp import Timestamp

from embedded.client import Client
from embedded.errors import CommandError, bad_value, internal_error
from embedded.logical_clock import LogicalClock
from embedded.member import Role
from embedded.mongod import Mongod
from embedded.storage.bson_values import Document

log = structlog.get_logger()


class Servers:
    """The config server and the shard servers of one process, in the cluster or not.

    Args:
        make: makes a server of a name and a role.
    """

    def __init__(self, make: Callable[[str, Role], Mongod]) -> None:
        self._make = make
        self.config = make("cfg", "configsvr")
        self.shards: dict[str, Mongod] = {}

    async def start_shard(self, name: str) -> Mongod:
        """Start a shard server without adding it to the cluster (see ``addShard``).

        Raises:
            CommandError: 2 BadValue if a shard server of that name exists.
        """
        if name in self.shards or not name:
            raise bad_value(f"a shard server {name!r} is already running")
        mongod = self.shards[name] = self._make(name, "shardsvr")
        try:
            await mongod.start()
        except BaseException:
            del self.shards[name]
            raise
        return mongod

    async def stop(self) -> None:
        """Stop all servers."""
        for mongod in (*self.shards.values(), self.config):
            await mongod.stop()

    def find(self, host: str) -> Mongod | None:
        """Return the shard server with this host string or address, None if there is none."""
        for mongod in self.shards.values():
            if host in (mongod.host_string, mongod.host_string.partition("/")[2]):
                return mongod
        return None


_PLAIN = Client(in_process=True)
_MIGRATION = Client(in_process=True, from_migrate=True)


class Shard:
    """One replica set of this process: a shard, or the config server.

    Args:
        id: the shard's id, or ``config``.
        mongod: the server.
        gossip: the mongos's cluster time, exchanged with each call.
    """

    def __init__(self, id: str, mongod: Mongod, gossip: LogicalClock) -> None:  # noqa: A002
        self.id = id
        self.mongod = mongod
        self._gossip = gossip

    @property
    def host(self) -> str:
        """The host string, ``set/host:port``."""
        return self.mongod.host_string

    @property
    def operation_time(self) -> Timestamp:
        """The time of the last operation here, for ``operationTime``."""
        return self.mongod.oplog.last_ts or self.mongod.clock.time

    async def execute(
        self, database: str, command: Mapping[str, Any], *, from_migrate: bool = False
    ) -> Document:
        """Run a command and return its reply.

        Args:
            database: the database.
            command: the command.
            from_migrate: whether the writes belong to a migration, which change streams skip.

        Raises:
            CommandError: the server's error.
        """
        self.adopt_time()
        try:
            return await self.run(database, command, from_migrate=from_migrate)
        finally:
            self.report_time()

    async def run(
        self, database: str, command: Mapping[str, Any], *, from_migrate: bool = False
    ) -> Document:
        """Run a command without exchanging cluster times; see ``execute``."""
        client = _MIGRATION if from_migrate else _PLAIN
        try:
            return await self.mongod.execute(database, dict(command), client)
        except CommandError:
            raise
        except Exception as error:
            # As over a connection: a defect of one server does not cancel commands on the others.
            log.exception("command failed", command=next(iter(command)), shard=self.id)
            raise internal_error(error) from error

    def adopt_time(self) -> None:
        """Advance this server's clock to the mongos's cluster time."""
        self.mongod.clock.advance(self._gossip.time)

    def report_time(self) -> None:
        """Advance the mongos's clock to this server's cluster time."""
        self._gossip.advance(self.mongod.clock.time)


async def execute_on_all(
    shards: Mapping[Shard, Mapping[str, Any]], database: str
) -> dict[Shard, Document]:
    """Run one command on each shard in parallel, starting from the same cluster time.

    Parallel operations therefore get equal cluster times, as on a real cluster.

    Raises:
        CommandError: the error of the first shard that has one, when all have answered.
    """
    replies: dict[Shard, Document] = {}
    errors: dict[Shard, CommandError] = {}

    async def one(shard: Shard, command: Mapping[str, Any]) -> None:
        if shard is first:
            _exchange_times(shards)
        try:
            replies[shard] = await shard.run(database, command)
        except CommandError as error:
            errors[shard] = error

    # The tasks start one right after the other. Callbacks that were already scheduled, such as a
    # shard's no-op, have run when the first one starts, so the times are exchanged there.
    first = next(iter(shards), None)
    async with asyncio.TaskGroup() as group:
        for shard, command in shards.items():
            group.create_task(one(shard, command))
    for shard in shards:
        shard.report_time()
    for shard in shards:
        if shard in errors:
            raise errors[shard]
    return {shard: replies[shard] for shard in shards}


def _exchange_times(shards: Iterable[Shard]) -> None:
    """Advance all shards to the largest cluster time of any of them."""
    for shard in shards:
        shard.report_time()
    for shard in shards:
        shard.adopt_time()


def raise_write_error(reply: Document) -> None:
    """Raise the first write error of a reply as a CommandError, if it has one."""
    for failure in reply.get("writeErrors", ()):
        raise CommandError(failure["code"], failure["errmsg"])
