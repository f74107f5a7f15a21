"""The cluster: config server and shards as replica sets, one clock, connections to each."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import structlog
from bson.timestamp import Timestamp

from router.catalog.dialer import MemberDialer
from router.catalog.shared_answer import SharedAnswer
from router.stream_settings import StreamSettings
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError, NetworkError
from shard_client.remote_cursor.retry_policy import from_network, is_resumable
from shard_client.replica_set.motor_control import MotorReplicaSet
from shard_client.replica_set.read_preference import PRIMARY, ReadPreference
from shard_client.replica_set.replica_set import ReplicaSet, no_member, parse_hosts
from shard_client.wire.connection import Address, Connection
from shard_client.wire.connection_pool import ConnectionPool

log = structlog.get_logger()

CONFIG = "config"
"""The target that is the config server (docs/protocol.md, section 6)."""

ReplicaSetFactory = Callable[[str, tuple[Address, ...]], ReplicaSet]

_WIRE_VERSION_OF_TOKEN_2 = 21
_MOST_SHARDS = 100_000
_REFRESH_TIMEOUT = 1.0


class ShardList(NamedTuple):
    """Host strings by shard id, and the config server's times before and after they were read.

    No change is missed by a change stream that starts ``before``; all that the list shows, shards
    that have left included, happened ``by`` the other one.
    """

    hosts: Mapping[str, str]
    before: Timestamp
    by: Timestamp
    draining: frozenset[str] = frozenset()
    """Those that are being removed."""


class Cluster:
    """A sharded cluster, known by its config server (``rsName/host:port[,host:port]``).

    ``replica_set`` makes the monitoring of one replica set from its name and seeds; the default is
    the driver's (Motor). ``clock`` is the cluster time that servers' replies carried; a client's
    time never reaches it. ``versions_changed`` is set when a member's hello tells another wire
    version than the last one of its replica set. ``wall`` is the wall clock, in seconds since 1970.
    Must be made in a running loop. Raises ValueError for a bad ``configdb``.
    """

    def __init__(
        self,
        configdb: str,
        limits: StreamSettings | None = None,
        *,
        replica_set: ReplicaSetFactory | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        parse_hosts(configdb)
        self._limits = limits or StreamSettings()
        self._factory: ReplicaSetFactory = replica_set or partial(
            MotorReplicaSet, local_threshold=self._limits.local_threshold
        )
        self.clock = ClusterClock(wall)
        self._sets: dict[str, ReplicaSet] = {}
        self._hosts: dict[str, str] = {}
        self.versions_changed = asyncio.Event()
        self._wire_versions: dict[str, int] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.pool = ConnectionPool(self._limits.pool)
        self._list = SharedAnswer(self._listed, "read the shard list")
        self._list_error: CommandError | None = None
        self._follow(CONFIG, configdb)

    async def shards(self, timeout: float | None = None) -> ShardList:
        """Return the shard list as it is after this was called, read once for all who ask at once.

        Raises CommandError (labelled resumable) when the config server stays unreachable for
        ``timeout`` seconds (default: ``open_timeout``).
        """
        try:
            async with asyncio.timeout(self._limits.open_timeout if timeout is None else timeout):
                return await self._list.get()
        except TimeoutError:
            raise self._list_error or no_member(PRIMARY, self._sets[CONFIG].name) from None

    async def _listed(self) -> ShardList:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.open_timeout
        backoff = Backoff(self._limits.backoff_first, self._limits.backoff_max)
        self._list_error = None
        while True:
            try:
                return await self._read_shards(max(0.001, deadline - loop.time()))
            except (CommandError, NetworkError) as failure:
                error = _retriable(failure)
                if not is_resumable(error) or loop.time() >= deadline:
                    raise error from failure
            say = log.debug if self._list_error else log.warning
            say("cannot read the shard list", error=str(error))
            self._list_error = error
            pause = min(backoff.next_pause(), max(0.0, deadline - loop.time()))
            await asyncio.sleep(pause)

    def dialer(
        self, target: str, host: str | None = None, *, preference: ReadPreference = PRIMARY
    ) -> MemberDialer:
        """Return what connects to ``target``: a shard id or ``"config"``.

        ``host`` is the shard's host string where the caller knows it.
        """
        return MemberDialer(
            self,
            target,
            host,
            preference=preference,
            attempt_timeout=self._limits.connect_timeout,
            pool=self.pool,
        )

    async def connect(self, target: str, host: str | None = None) -> Connection:
        """Return a connection to the primary of ``target``, trying for up to ``open_timeout``.

        It is to be given back by ``release``. Raises CommandError (labelled resumable).
        """
        try:
            return await self.dialer(target, host).connect(self._limits.open_timeout)
        except CommandError as error:
            raise _retriable(error) from error

    def release(self, connection: Connection) -> None:
        """Give a connection back to the pool; one that is closed or busy is cut."""
        self.pool.give_back(connection)

    async def locate(self, target: str, host: str | None, *, fresh: bool) -> ReplicaSet:
        """Return the replica set that serves ``target``, as the newest shard list read says.

        A ``host`` string that differs from it, or ``fresh``, has the list read again: an event of
        the past may name hosts of the past. Raises CommandError (70 ShardNotFound).
        """
        if target != CONFIG and (fresh or (host is not None and host != self._hosts.get(target))):
            try:
                async with asyncio.timeout(_REFRESH_TIMEOUT):
                    await self.shards(_REFRESH_TIMEOUT)
            except (CommandError, TimeoutError) as error:
                log.warning("cannot read the shard list", error=str(error))
        if target not in self._sets:
            if host is None:
                raise CommandError(ErrorCode.ShardNotFound, f"Shard {target} not found")
            self._follow(target, host)
        return self._sets[target]

    def replica_set(self, target: str) -> ReplicaSet | None:
        """Return the replica set that ``target`` is now, as far as is known without asking.

        It is another object after the shard has moved to other hosts.
        """
        return self._sets.get(target)

    @property
    def targets(self) -> int:
        """How many replica sets are known: shards and config server, one at least."""
        return len(self._hosts)

    def said_hello(self, target: str, connection: Connection) -> None:
        """Take note of what a connection's hello has told: its cluster time and its version."""
        self.clock.advance(connection.hello.get("$clusterTime"))
        version = int(connection.hello.get("maxWireVersion", 0))
        if self._wire_versions.setdefault(target, version) != version:
            self._wire_versions[target] = version
            self.versions_changed.set()

    @property
    def token_version(self) -> int:
        """The version of resume tokens that the members seen make (docs/protocol.md, section 3)."""
        known = [version for target, version in self._wire_versions.items() if target != CONFIG]
        versions = known or list(self._wire_versions.values())
        return 2 if versions and min(versions) >= _WIRE_VERSION_OF_TOKEN_2 else 1

    async def close(self) -> None:
        """Close all monitoring and connections of the cluster's own."""
        await self._list.close()
        self.pool.close()
        for replica_set in self._sets.values():
            self._release(replica_set)
        self._sets.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _read_shards(self, timeout: float) -> ShardList:
        dialer = self.dialer(CONFIG)
        connection = await dialer.connect(timeout)
        try:
            before = _time_of(connection.hello)
            command: dict[str, Any] = {
                "find": "shards",
                "batchSize": _MOST_SHARDS,
                "singleBatch": True,
                "readConcern": {"level": "majority", "afterClusterTime": before},
            }
            if self.clock.document is not None:
                command["$clusterTime"] = self.clock.document
            wait = min(timeout, self._limits.reply_timeout)
            reply = await connection.command("config", command, timeout=wait)
            self.clock.advance(reply.get("$clusterTime"))
            by = _time_of(reply)
        except (CommandError, NetworkError):
            # The member may be no primary any more: look for it again.
            dialer.suspect(connection.address)
            raise
        finally:
            dialer.release(connection)
        try:
            listed = reply["cursor"]["firstBatch"]
            shards = {each["_id"]: each["host"] for each in listed}
            draining = frozenset(each["_id"] for each in listed if each.get("draining"))
            for shard, host in shards.items():
                if self._hosts.get(shard) != host:
                    self._follow(shard, host)
        except (KeyError, TypeError, ValueError) as error:
            raise CommandError(
                ErrorCode.FailedToParse, f"config.shards cannot be read: {error!r}"
            ) from error
        for gone in self._hosts.keys() - shards.keys() - {CONFIG}:
            self._forget(gone)
        return ShardList(shards, before, by, draining)

    def _follow(self, target: str, host: str) -> None:
        """Watch the replica set of ``target``; at another place than before if ``host`` differs."""
        name, seeds = parse_hosts(host)
        followed = self._sets.get(target)
        self._hosts[target] = host
        if followed is not None:
            if followed.name == name and set(followed.hosts) >= set(seeds):
                return
            self._release(followed)
        self._sets[target] = self._factory(name, seeds)

    def _forget(self, target: str) -> None:
        del self._hosts[target]
        self._wire_versions.pop(target, None)
        self._release(self._sets.pop(target))

    def _release(self, replica_set: ReplicaSet) -> None:
        task = asyncio.get_running_loop().create_task(replica_set.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _time_of(reply: Mapping[str, Any]) -> Timestamp:
    """Return the member's time after it has answered."""
    time = reply.get("operationTime")
    if not isinstance(time, Timestamp):
        raise CommandError(ErrorCode.IllegalOperation, "the config server tells no time")
    return time


def _retriable(failure: CommandError | NetworkError) -> CommandError:
    """Return the failure as a client gets it: labelled, if it is worth trying again."""
    if isinstance(failure, NetworkError):
        failure = from_network(failure, "the config server")
    if not is_resumable(failure):
        return failure
    return CommandError(failure.code, failure.message, labels=failure.labels | {RESUMABLE_LABEL})
