"""Checks of the servers that the settings name: one list for start, check-config and readiness."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import structlog
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.catalog.shard_list import CONFIG
from router.catalog.wire_versions import WIRE_VERSION_OF_8_0
from router.privileges import ALL_DATABASES, CLUSTER, STREAM_ACTIONS, Privileges, Resource
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.errors import CommandError, ErrorCode, NetworkError, WrongServerError, plain_text
from shard_client.wire.authentication import Credentials
from shard_client.wire.connection import Address, Connection, format_address

log = structlog.get_logger()

_OLDEST_ENTRY: Mapping[str, Any] = {
    "find": "oplog.rs",
    "sort": {"$natural": 1},
    "projection": {"ts": 1, "o.msg": 1},
    "limit": 1,
    "singleBatch": True,
}
_FIRST_ENTRY = "initiating set"
"""Message of the first entry that a replica set writes: while it is there, nothing is dropped."""

_TIMEOUT = 3.0
_MOST_AT_ONCE = 16
_TIMEOUT_OF_CALLERS, _TIMEOUT_OF_FIRST = 0.1, 1.0
"""Seconds for which a caller waits for newer results, or for the first ones: less than the time
that the parent of several workers waits for their statuses."""
_MOST_SKEW = 60.0

_REACH_MEMBERS = (
    "Check that its members run, that rs.status() shows a primary, and that this machine reaches "
    "the names in rs.conf(). Check the name of the set and net.tls.mode"
)
_REACH_MONGOS = (
    "Check that a mongos runs there and that this machine reaches it. Check net.tls.mode"
)
_NO_SHARDS = (
    "lists no shards, so there is nothing to stream. Add the first shard (sh.addShard), or name "
    "the config server of another cluster in sharding.configDB (--configdb)"
)
_SHARD = (
    "is a shard: the cluster's other shards would be missing. Name the cluster's config server in "
    "sharding.configDB (--configdb) instead"
)
_OTHER_CLUSTER = (
    "is a mongos of another cluster than the config server: reads and writes would go there. Name "
    "a mongos of the same cluster in upstream (--upstream), or its config server in "
    "sharding.configDB (--configdb)"
)
_LET_IN = "Check security.user, authSource, the password or the key file, and that the user exists"
_REFUSALS = (ErrorCode.Unauthorized, ErrorCode.AuthenticationFailed, ErrorCode.UserNotFound)


class Need(NamedTuple):
    """What the router's user must be allowed on a server, and what for.

    ``serves`` is whether clients can be served without it.
    """

    resource: Resource
    actions: tuple[str, ...]
    purpose: str
    serves: bool = True

    def missing(self, granted: Privileges) -> str:
        """Return as text what is needed and not granted; empty if nothing is missing."""
        actions = [action for action in self.actions if not granted.allow(self.resource, action)]
        database, collection, cluster = self.resource
        place = "the cluster" if cluster else ".".join(filter(None, (database, collection)))
        text = f"{' and '.join(actions)} on {place or 'all databases'} ({self.purpose})"
        return text if actions else ""


_OPLOG = Resource("local", "oplog.rs")
_HISTORY = Need(_OPLOG, ("find",), "the warning before history is lost")
_USERS = Need(ALL_DATABASES, ("viewUser",), "the rights of clients", serves=False)
_OF_ALL = (
    Need(CLUSTER, ("appendOplogNote",), "no-op writes, so that no stream waits for an idle member"),
    Need(_OPLOG, ("collStats",), "the share of the oplog that no-op writes take"),
    _HISTORY,
)
_OF_SHARDS = (Need(ALL_DATABASES, STREAM_ACTIONS, "streams", serves=False),)
_OF_CONFIG = (
    Need(Resource("config", "shards"), STREAM_ACTIONS, "the list of shards", serves=False),
    Need(Resource("config", "databases"), ("find",), "which names are views, to share streams"),
    _USERS,
)
_OF_ONLY_SET = (_HISTORY, *_OF_SHARDS, _USERS)
_OF_8_0 = Need(
    CLUSTER,
    ("issueDirectShardOperations",),
    "the role directShardOperations: with two shards, MongoDB 8.0 refuses reads without it",
)
_OF_LOOKUPS = Need(ALL_DATABASES, ("find",), "fullDocument: updateLookup")
_OF_SOME = (*_OF_SHARDS, _OF_LOOKUPS)


Severity = Literal["ok", "warning", "error", "fatal"]
"""What a check means: in spite of a "warning" clients can be served; an "error" may pass; waiting
does not help where it is "fatal": another server answers, or the cluster is none yet."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found at one place that the settings name.

    ``subject`` names the place. ``target`` is the replica set there; None for another place.
    ``text`` gives the cause and the remedy of a problem; it may be a note if all is well.
    ``oldest`` is the time of a shard's oldest oplog entry, None if it is unknown; ``complete`` is
    whether no entry has been dropped since the set was initiated.
    """

    subject: str
    target: str | None = None
    severity: Severity = "ok"
    text: str = ""
    oldest: Timestamp | None = None
    complete: bool = False

    @property
    def is_problem(self) -> bool:
        """Whether something is wrong."""
        return self.severity != "ok"


class ServerChecks:
    """Checks config server, shards and upstream on request, and keeps the results for a while.

    A check takes one hello, one read of one oplog entry and one of the router's privileges on each
    primary; on each upstream a connection, with the router's login there if it has one. Must be
    created in a running loop; ``await close()`` ends a check in flight. Results are returned for
    ``keep`` seconds without another check.
    """

    def __init__(
        self, cluster: Cluster, upstream: UpstreamMongos | None = None, *, keep: float = 5.0
    ) -> None:
        self._cluster = cluster
        self._upstream = upstream
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._results: Sequence[Check] = ()
        self._at = float("-inf")

    async def results(self, *, whole: bool = False) -> Sequence[Check]:
        """Return the results: config server, shards, upstreams, and the clocks.

        If they are more than ``keep`` seconds old, a new check is started. One that takes long
        continues in the background, unless the ``whole`` check is wanted; the call then returns the
        results before it, which are empty at first. If the config server does not answer, the
        shards of the last shard list that was read are checked.
        """
        timeout = _TIMEOUT_OF_CALLERS if self._results else _TIMEOUT_OF_FIRST
        if self._running is None and self._loop.time() - self._at >= self._keep:
            self._running = self._loop.create_task(self._refresh(), name="check the servers")
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=None if whole else timeout)
        return self._results

    async def close(self) -> None:
        """End the check in flight."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def _refresh(self) -> None:
        try:
            self._results = await self._check_all()
        except Exception as error:  # without a result, all would seem well
            log.exception("Unexpected error", component="SHARDING")
            problem = f"have failed: {error!r}"
            self._results = [Check("checks of the servers", severity="warning", text=problem)]
        finally:
            self._at, self._running = self._loop.time(), None

    async def _check_all(self) -> Sequence[Check]:
        addresses = () if self._upstream is None else self._upstream.addresses
        sets, *upstreams = await asyncio.gather(
            self._check_sets(), *(self._check_upstream(address) for address in addresses)
        )
        return [*sets, *(check for checks in upstreams for check in checks), *self._clocks()]

    async def _check_sets(self) -> Sequence[Check]:
        if not self._cluster.sharded:
            return [await self._check_only_set(Check("replica set", self._cluster.catalog))]
        config, no_shards = Check("config server", CONFIG), list[Check]()
        needs: Sequence[Need] = (*_OF_ALL, *_OF_CONFIG)
        try:
            listed = await self._cluster.shards(_TIMEOUT)
        except CommandError as error:
            config = _failed(config, error, _REACH_MEMBERS)
            if error.code == ErrorCode.Unauthorized:
                lacking = await self._check(Check("config server", CONFIG), needs)
                config = replace(config, text=lacking.text if lacking.is_problem else config.text)
        else:
            if CONFIG in listed.hosts:
                config = await self._check(config, (*needs, *_OF_SHARDS))
            else:
                config = replace(await self._check(config, needs), oldest=None)
            if not listed.hosts and config.severity in ("ok", "warning"):
                no_shards = [Check("config.shards", severity="fatal", text=_NO_SHARDS)]
        at_once = asyncio.Semaphore(_MOST_AT_ONCE)

        async def check(target: str) -> Check:
            async with at_once:
                return await self._check(Check(f"shard {target}", target), (*_OF_ALL, *_OF_SHARDS))

        shards = sorted(self._cluster.known_shards - {CONFIG})
        return [config, *no_shards, *await asyncio.gather(*map(check, shards))]

    async def _check_only_set(self, place: Check) -> Check:
        """Check a set that is no cluster's; one that is a shard lacks events of the others."""
        problems = await self._check(place, _OF_ONLY_SET)
        try:
            async with self._cluster.lend(self._cluster.catalog, timeout=_TIMEOUT) as connection:
                known = await _find(connection, "admin", "system.version")
        except (CommandError, NetworkError):
            return problems  # it is not known
        is_shard = any(identity["_id"] == "shardIdentity" for identity in known)
        return _wrong(place, _SHARD) if is_shard else problems

    async def _check(self, place: Check, needs: Sequence[Need]) -> Check:
        assert place.target is not None
        lent, answers = self._cluster.lend(place.target, timeout=_TIMEOUT), False
        try:
            async with asyncio.timeout(_TIMEOUT):
                async with lent as connection:
                    answers = True
                    if (user := self._cluster.access.credentials) is not None:
                        version = int(connection.hello.get("maxWireVersion", 0))
                        if self._cluster.sharded and version >= WIRE_VERSION_OF_8_0:
                            needs = (*needs, _OF_8_0)
                        place = _lacking(place, user, await _privileges(connection), needs)
                    reply = await connection.command("local", _OLDEST_ENTRY, timeout=_TIMEOUT)
                (entry,) = reply["cursor"]["firstBatch"]
                complete = entry.get("o", {}).get("msg") == _FIRST_ENTRY
                return replace(place, oldest=entry["ts"], complete=complete)
        except TimeoutError:
            failure: Exception = NetworkError(f"no answer within {_TIMEOUT:g} s")
        except (CommandError, NetworkError) as error:
            failure = error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            failure = NetworkError(repr(error))
        if not answers:
            return _failed(place, failure, _REACH_MEMBERS)
        if place.is_problem:
            return place
        unread = f"answers, but its oplog cannot be read ({failure})"
        return replace(
            place, text=f"{unread}: metrics will not show when history is about to be lost"
        )

    async def _check_upstream(self, address: Address) -> Sequence[Check]:
        upstream = self._upstream
        assert upstream is not None
        place = Check(f"upstream {format_address(address)}")
        try:
            connection = await upstream.connect_to(address)
        except (CommandError, NetworkError) as error:
            return [_failed(place, error, _REACH_MONGOS, "warning")]
        try:
            if await self._of_another_cluster(connection):
                return [_wrong(place, _OTHER_CLUSTER)]
            if upstream.user is None:
                return [place]
            login = Check(f"login on the upstream as {upstream.user.user}")
            try:
                await connection.log_in(upstream.user, _TIMEOUT)
                granted = await _privileges(connection)
            except (CommandError, NetworkError) as error:
                return [place, _failed(login, error, _REACH_MONGOS, "warning")]
            return [place, _lacking(login, upstream.user, granted, [_OF_LOOKUPS])]
        finally:
            connection.abort()

    async def _of_another_cluster(self, mongos: Connection) -> bool:
        """Return whether a mongos is known to belong to another cluster than the config server.

        Where servers sign cluster times, the key tells it, otherwise the cluster's id.
        """
        key, lent = _signing_key(mongos.hello), self._cluster.lend(CONFIG, timeout=_TIMEOUT)
        try:
            async with asyncio.timeout(_TIMEOUT), lent as config:
                if key:
                    if key == _signing_key(config.hello):
                        return False
                    keys = await _find(config, "admin", "system.keys")
                    return key not in {known.get("_id") for known in keys}
                return bool(await _cluster_id(mongos) != await _cluster_id(config))
        except (CommandError, NetworkError, TimeoutError):
            return False  # it is not known

    def _clocks(self) -> Sequence[Check]:
        time = self._cluster.clock.time
        if time is None:
            return ()
        skew = abs(self._cluster.wall() - time.time)
        clocks = Check("clocks of cluster and router")
        if skew <= _MOST_SKEW:
            return [clocks]
        problem = f"differ by {skew:.0f} s: synchronise the machines' clocks"
        return [replace(clocks, severity="warning", text=problem)]


def _failed(place: Check, error: Exception, remedy: str, severity: Severity = "error") -> Check:
    """Return the check of a place whose server does not answer, refuses, or is another one."""
    if isinstance(error, WrongServerError):
        return _wrong(place, f"is the wrong server: {error.message}")
    text = f"does not answer: {plain_text(error)}. {remedy}"
    if isinstance(error, CommandError) and error.code in _REFUSALS:
        hint = "" if error.code == ErrorCode.Unauthorized else f". {_LET_IN}"
        text = f"refuses the router: {error}{hint}"
    return replace(place, severity=severity, text=text)


def _lacking(place: Check, user: Credentials, granted: Privileges, needs: Sequence[Need]) -> Check:
    """Return the check of a place with a problem if the router's user lacks privileges there."""
    # Some databases of users may be all that is wanted.
    some = [acts for on, acts in granted.granted.items() if on[:1] not in (("config",), ("local",))]
    missing = {
        need: text
        for need in needs
        if (text := need.missing(granted))
        and not (need in _OF_SOME and any(actions.issuperset(need.actions) for actions in some))
    }
    if not missing:
        return place
    severity: Severity = "warning" if all(need.serves for need in missing) else "error"
    lacks = "; ".join(missing.values())
    problem = (
        f"grants the router's user {user} too little. It lacks {lacks}. "
        "Grant it there as in docs/security.md"
    )
    return replace(place, severity=severity, text=problem)


async def _privileges(connection: Connection) -> Privileges:
    """Return what the connection's user may do; raises CommandError, NetworkError."""
    asking = {"connectionStatus": 1, "showPrivileges": True}
    status = await connection.command("admin", asking, timeout=_TIMEOUT)
    return Privileges.of(status["authInfo"]["authenticatedUserPrivileges"])


def _wrong(place: Check, problem: str) -> Check:
    return replace(place, severity="fatal", text=problem)


def _signing_key(hello: Mapping[str, Any]) -> int:
    """Return the id of the key with which the time in a hello is signed; 0 without one."""
    return int(hello.get("$clusterTime", {}).get("signature", {}).get("keyId", 0))


async def _cluster_id(server: Connection) -> Any:
    """Return the cluster's id, which config server and mongos both know."""
    documents = await _find(server, "config", "version")
    if not documents or "clusterId" not in documents[0]:
        raise CommandError(ErrorCode.NoMatchingDocument, "the cluster's id is unknown")
    return documents[0]["clusterId"]


async def _find(server: Connection, database: str, collection: str) -> list[Mapping[str, Any]]:
    command = {"find": collection, "projection": {"clusterId": 1}, "singleBatch": True}
    reply = await server.command(database, command, timeout=_TIMEOUT)
    documents: list[Mapping[str, Any]] = reply["cursor"]["firstBatch"]
    return documents
