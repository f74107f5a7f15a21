"""The cluster: its config server and shards, or one replica set; connections to their members."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from router.catalog.shard_list import CONFIG, ShardList, read_shard_list
from router.catalog.wire_versions import WireVersions
from router.stream_settings import StreamSettings
from router.tasks import AwaitedTasks, SharedAnswer
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import (
    RESUMABLE_LABEL,
    CommandError,
    ErrorCode,
    NetworkError,
    ProtocolError,
    WrongServerError,
    blames_member,
    from_network,
    is_resumable,
)
from shard_client.remote_cursor.cursor_reaper import CursorReaper
from shard_client.remote_cursor.open_cursor import OpenCursor
from shard_client.replica_set.motor_replica_set import MotorReplicaSet
from shard_client.replica_set.replica_set import (
    PRIMARY,
    NoMemberError,
    ReadPreference,
    ReplicaSet,
    parse_hosts,
)
from shard_client.wire.authentication import OPEN, Access
from shard_client.wire.connection import Address, Connection, format_address
from shard_client.wire.connection_pool import ConnectionPool

log = structlog.get_logger()

ReplicaSetFactory = Callable[[str, tuple[Address, ...]], ReplicaSet]

_WRONG_SERVER = {
    True: "no config server: name the cluster's config server in sharding.configDB (--configdb)",
    False: "a config server: name it in sharding.configDB (--configdb), not as a replica set",
}
_REFRESH_TIMEOUT = 1.0
PAUSE_AFTER_REFUSAL = 60.0
"""Seconds for which a server that has refused a request is not asked again: rights that the router
lacks may be granted meanwhile."""


class Cluster:
    """A sharded cluster, identified by its config server (``rsName/host:port[,host:port]``).

    If it is not ``sharded``, ``seeds`` name a replica set: then its one shard is that set, and has
    the set's name.

    ``replica_set`` creates the monitor of one replica set from its name and seeds; the default is
    the driver's (Motor). ``clock`` is the newest cluster time from servers' replies; it never
    includes a client's time. ``versions`` are the members' wire versions. ``wall`` is the wall
    clock, in seconds since 1970. ``access`` is how connections to the members are made. Must be
    created in a running loop. Raises ValueError for invalid ``seeds``.
    """

    def __init__(
        self,
        seeds: str,
        settings: StreamSettings | None = None,
        *,
        sharded: bool = True,
        replica_set: ReplicaSetFactory | None = None,
        wall: Callable[[], float] = time.time,
        access: Access = OPEN,
    ) -> None:
        name, hosts = parse_hosts(seeds)
        self.sharded = sharded
        self.catalog = CONFIG if sharded else name
        """The target that has the users and the keys of cluster times."""
        self.access = access
        self._settings = settings or StreamSettings()
        self.connect_timeout = self._settings.connect_timeout
        """Seconds for one attempt to connect to a member."""
        self._factory: ReplicaSetFactory = replica_set or partial(
            MotorReplicaSet, local_threshold=self._settings.local_threshold, access=access
        )
        self.clock = ClusterClock(wall)
        self.wall = wall
        self._sets: dict[str, ReplicaSet] = {self.catalog: self._factory(name, hosts)}
        self._hosts = {self.catalog: seeds}
        """Host strings by target: of the shards, and of the config server even if it is none."""
        self.known_shards: Set[str] = frozenset() if sharded else {name}
        """The ids of the shards in the latest shard list that was read."""
        self.versions = WireVersions()
        self._closing = AwaitedTasks()
        self.pool = ConnectionPool(self._settings.pool, access=access)
        self.cursor_reaper = CursorReaper(self.pool.borrow)
        self._listing = SharedAnswer(self._read_list, "read the shard list")
        self._unlisted: CommandError | None = None
        """Why the list could not be read at the last attempt of the reading in progress."""

    async def shards(self, timeout: float | None = None) -> ShardList:
        """Return the shard list, read after this call; concurrent callers share one read.

        Raises CommandError (labelled resumable) if the config server stays unreachable for
        ``timeout`` seconds (default: ``open_timeout``).
        """
        if not self.sharded:
            return ShardList(self._hosts, None, Timestamp(0, 0))
        try:
            async with asyncio.timeout(self._settings.open_timeout if timeout is None else timeout):
                return await self._listing.get()
        except TimeoutError:
            config = self._sets[CONFIG]
            failure = self._unlisted or NoMemberError(PRIMARY, config.name, config.causes)
            raise failure.with_labels(RESUMABLE_LABEL) from None  # each caller has its own copy

    async def _read_list(self) -> ShardList:
        """Read the list, again and again, while the failure may be over soon and a caller waits."""
        backoff = Backoff(self._settings.backoff_first, self._settings.backoff_max)
        self._unlisted = None
        while True:
            try:
                async with self.lend(CONFIG) as config:
                    timeout = self._settings.reply_timeout
                    listed = await read_shard_list(config, self.clock, timeout)
            except NetworkError as error:
                failure = from_network(error, "the config server")
            except CommandError as error:
                if not is_resumable(error):
                    raise
                failure = error
            else:
                self._adopt(listed)
                return listed
            report = log.debug if self._unlisted else log.warning
            report("cannot read the shard list", error=str(failure))
            self._unlisted = failure
            await asyncio.sleep(backoff.next_pause())

    @asynccontextmanager
    async def lend(
        self,
        target: str,
        host: str | None = None,
        *,
        timeout: float | None = None,
        greet: bool = True,
    ) -> AsyncIterator[Connection]:
        """Lend a connection to the primary of ``target`` for a block.

        It is tried for up to ``timeout`` seconds (default: ``open_timeout``). The primary has just
        answered a hello; without ``greet`` none is sent to a primary that is known. After an error
        in the block that may be the member's, its role is looked up again. Raises CommandError,
        labelled resumable if it is.
        """
        most = self._settings.open_timeout if timeout is None else timeout
        known = None if greet else self._sets.get(target)
        primary = None if known is None else known.primary
        try:
            if primary is not None:
                connection = await self.pool.take(primary, most)
            else:
                dialer = MemberDialer(self, target, None if known else host)
                connection = await dialer.connect(most)
        except (CommandError, NetworkError) as error:
            if primary is not None and isinstance(error, NetworkError):
                self.distrust(target, primary)
            name = target if primary is None else format_address(primary)
            failure = from_network(error, name) if isinstance(error, NetworkError) else error
            labels = [RESUMABLE_LABEL] if is_resumable(failure) else []
            raise failure.with_labels(*labels) from error
        try:
            yield connection
        except (CommandError, NetworkError, ProtocolError) as error:
            if isinstance(error, ProtocolError) or blames_member(error):
                self.distrust(target, connection.address)
                self.pool.forget(connection.address)
            raise
        finally:
            self.pool.give_back(connection)

    async def command(
        self,
        target: str,
        database: str,
        command: Mapping[str, Any],
        timeout: float,
        host: str | None = None,
    ) -> dict[str, Any]:
        """Run a command on the primary of ``target``; raises CommandError, NetworkError.

        The connection is that of ``lend``; ``timeout`` is the seconds to wait for the reply.
        """
        async with self.lend(target, host) as connection:
            return await connection.command(database, command, timeout=timeout)

    def is_listed_at(self, target: str, host: str | None) -> bool:
        """Return whether ``host`` is that of the shard list, in which an old event's may differ."""
        return host is None or host == self._hosts.get(target)

    async def try_refresh(self) -> None:
        """Read the shard list again, within a second, where a shard may have moved.

        A failure is logged.
        """
        try:
            await self.shards(_REFRESH_TIMEOUT)
        except CommandError as error:
            log.warning("cannot read the shard list", error=str(error))

    def replica_set(self, target: str, host: str | None = None) -> ReplicaSet:
        """Return the replica set that serves ``target`` according to the latest shard list.

        ``host`` serves a target that is not in the list. It is a different object after the shard
        has moved to other hosts. Raises CommandError: 70 ShardNotFound; 6 HostUnreachable, the set
        cannot be monitored now.
        """
        if target not in self._sets and host is not None:
            self._follow(target, host)
        if target in self._sets:
            return self._sets[target]
        if host is None and target not in self.known_shards:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {target} not found")
        raise CommandError(ErrorCode.HostUnreachable, f"Shard {target} cannot be monitored")

    def distrust(self, target: str, address: Address) -> None:
        """Let no connection to ``target`` lead to this member before a hello has shown its role."""
        if (replica_set := self._sets.get(target)) is not None:
            replica_set.distrust(address)

    @property
    def targets(self) -> int:
        """The number of known replica sets, shards and config server; at least one."""
        return len(self._hosts)

    def record_hello(self, target: str, connection: Connection) -> None:
        """Record the cluster time and the wire version of a connection's hello.

        Raises WrongServerError if the config server's member belongs to no config server, or the
        replica set is one.
        """
        if target == self.catalog and ("configsvr" in connection.hello) != self.sharded:
            where = format_address(connection.address)
            raise WrongServerError(
                ErrorCode.IllegalOperation, f"{where} answers, but is {_WRONG_SERVER[self.sharded]}"
            )
        self.clock.advance(connection.hello.get("$clusterTime"))
        self.versions.record(target, connection.hello)

    def renew_monitors(self) -> None:
        """Make the monitoring of all replica sets reconnect, with the current certificates."""
        for replica_set in self._sets.values():
            replica_set.renew()

    async def close(self) -> None:
        """Close the cluster's monitors and connections."""
        await self._listing.close()
        await self.cursor_reaper.close()
        self.pool.close()
        for target in list(self._sets):
            self._closing.start(self._sets.pop(target).close(), "close a monitor")
        await self._closing.wait()

    def _adopt(self, listed: ShardList) -> None:
        """Monitor the shards of the newest list."""
        for shard, host in listed.hosts.items():
            if self._hosts.get(shard) != host:
                self._follow(shard, host)
        for gone in self._hosts.keys() - listed.hosts.keys() - {CONFIG}:
            self._forget(gone)
        self.known_shards = listed.hosts.keys()

    def _follow(self, target: str, host: str) -> None:
        """Monitor the replica set of ``target``; replace it if ``host`` has other members.

        What cannot be monitored is logged, and tried again with the next list. Raises ValueError
        for an invalid host string.
        """
        name, seeds = parse_hosts(host)
        followed = self._sets.get(target)
        if followed is None or followed.name != name or not set(followed.hosts) >= set(seeds):
            try:
                self._sets[target] = self._factory(name, seeds)
            except (PyMongoError, OSError, ValueError) as error:  # it reads the certificates
                log.warning("cannot connect for monitoring", set=name, error=str(error))
                return
            if followed is not None:
                self._closing.start(followed.close(), "close a monitor")
        self._hosts[target] = host

    def _forget(self, target: str) -> None:
        del self._hosts[target]
        self.versions.forget(target)
        self._closing.start(self._sets.pop(target).close(), "close a monitor")


@dataclass(eq=False)
class MemberDialer:
    """Takes connections from the cluster's pool to the members of the replica set ``target``.

    ``connect`` locates the target each time, so that it finds a shard that has moved to other hosts
    (docs/design.md#a-remote-cursor). ``target`` is a shard's id or ``"config"``, ``host`` the
    shard's host string if the caller knows it: after the first comparison the list is newer.
    """

    cluster: Cluster
    target: str
    host: str | None = None
    preference: ReadPreference = PRIMARY
    _compared: bool = False

    @property
    def pool(self) -> ConnectionPool:
        """The pool of the cluster's connections."""
        return self.cluster.pool

    async def connect(self, timeout: float) -> Connection:
        """Return a connection to the member to read from; retry for up to ``timeout`` seconds.

        The member has just answered a hello. The first attempt takes half of the time at most,
        since the newest shard list may have other members. Raises CommandError, the last failure.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        backoff = Backoff(0.01, 1.0)
        failed = False
        if not self._compared and not self.cluster.is_listed_at(self.target, self.host):
            await self.cluster.try_refresh()
        self._compared = True
        while True:
            left = max(0.001, deadline - loop.time())
            try:
                return await self._attempt(left if failed else left / 2)
            except CommandError as error:
                report = log.debug if failed else log.warning
                report("cannot connect", target=self.target, error=str(error))
                failed = True
                pause = backoff.next_pause()
                if not is_resumable(error) or loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            if self.target != CONFIG:
                await self.cluster.try_refresh()

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        """Return a connection to this member, regardless of its role.

        Raises CommandError, NetworkError.
        """
        return self._identified(await self.pool.take(address, timeout))

    def distrust(self, address: Address) -> None:
        """Do not connect to this member again before a new hello has shown its role."""
        self.cluster.distrust(self.target, address)

    def kill_later(self, cursor: OpenCursor) -> None:
        """Kill a cursor soon, or once its member answers again."""
        self.cluster.cursor_reaper.add(cursor)

    async def _attempt(self, timeout: float) -> Connection:
        replica_set = self.cluster.replica_set(self.target, self.host)
        address = await replica_set.select(self.preference, timeout)
        try:
            left = min(timeout, self.cluster.connect_timeout)
            connection = await self.pool.take(address, left, greet=True)
        except NetworkError as error:
            self.distrust(address)
            raise from_network(error, format_address(address)) from error
        hello = self._identified(connection).hello
        replica_set.observe(address, hello)
        is_primary = hello.get("isWritablePrimary", hello.get("ismaster"))
        if hello.get("setName") != replica_set.name:
            problem = f"is not a member of {replica_set.name}"
        elif self.preference == PRIMARY and not is_primary:
            problem = "is not primary"
        else:
            return connection
        self.pool.give_back(connection)
        self.distrust(address)
        raise CommandError(ErrorCode.NotWritablePrimary, f"{format_address(address)} {problem}")

    def _identified(self, connection: Connection) -> Connection:
        """Return a connection whose hello fits the target; release it and raise otherwise."""
        try:
            self.cluster.record_hello(self.target, connection)
        except WrongServerError:
            self.pool.give_back(connection)
            raise
        return connection
