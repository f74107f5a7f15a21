"""Replica sets monitored by the driver. The only module that imports Motor."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.monitoring import (
    ServerHeartbeatFailedEvent,
    ServerHeartbeatListener,
    ServerHeartbeatStartedEvent,
    ServerHeartbeatSucceededEvent,
    TopologyClosedEvent,
    TopologyDescriptionChangedEvent,
    TopologyListener,
    TopologyOpenedEvent,
)
from pymongo.topology_description import TopologyDescription

from shard_client.errors import CommandError, ErrorCode, plain_text
from shard_client.replica_set.replica_set import (
    HEARTBEAT,
    LOCAL_THRESHOLD,
    Member,
    NoMemberError,
    ReadPreference,
    ReplicaSet,
)
from shard_client.wire.authentication import EXTERNAL, MECHANISM, OPEN, X509, Access
from shard_client.wire.connection import MONITOR_NAME, Address, format_address

log = structlog.get_logger()

_CLOSE_TIMEOUT = 2.5
"""A little more than the time that the driver waits for an unresponsive member."""

_CHECK_PAUSE = 0.2
"""The least time between two checks that the driver is asked for, in seconds."""

_ROLES = {"RSPrimary": "primary", "RSSecondary": "secondary"}

NO_PRIMARY = (
    "No primary answers. Check that the set's members run, that rs.status() on one of them shows a "
    "primary, that this machine reaches them under the names in rs.conf(), and the set's name"
)
"""The log line at the start of each time without a primary."""


class MotorReplicaSet(ReplicaSet):
    """A ``ReplicaSet`` that Motor monitors (docs/design.md#topology).

    The driver polls each member every ``heartbeat`` seconds over one connection of its own, without
    a second connection for a streaming hello. Between two polls, the members' replies to the router
    reveal a change (``observe``, ``distrust``). When ``select`` then finds no suitable member,
    the driver checks again immediately. Create it in a running loop. ``local_threshold`` is in
    seconds. ``access`` is how the driver connects; its monitoring connections do not log in.
    """

    def __init__(
        self,
        name: str,
        seeds: Iterable[Address],
        *,
        heartbeat: float = HEARTBEAT,
        local_threshold: float = LOCAL_THRESHOLD,
        access: Access = OPEN,
    ) -> None:
        super().__init__(name, seeds)
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[Address, str] = {}
        self._changed = asyncio.Event()
        self._check: asyncio.Task[None] | None = None
        self._refused: CommandError | None = None
        self._distrusted: dict[Address, float] = {}
        """When each member was distrusted that the driver has not checked since."""
        self._lost = False
        self._threshold = local_threshold
        self._heartbeat = heartbeat
        self._access = access
        self._client = self._connect()

    def _connect(self) -> "AsyncIOMotorClient[dict[str, Any]]":
        self._listener: _Listener | None = _Listener(self)
        return AsyncIOMotorClient(
            [format_address(address) for address in self.hosts],
            replicaSet=self.name,
            appname=MONITOR_NAME,
            serverMonitoringMode="poll",
            serverSelectionTimeoutMS=2000,
            connectTimeoutMS=5000,
            socketTimeoutMS=2000,
            heartbeatFrequencyMS=int(self._heartbeat * 1000),
            maxPoolSize=1,
            maxIdleTimeMS=1000,
            event_listeners=[self._listener],
            io_loop=self._loop,
            **_login_options(self._access),
            **_tls_options(self._access),
        )

    async def select(self, preference: ReadPreference, timeout: float) -> Address:
        """Return a member as ``ReplicaSet.select``; after ``close`` it raises immediately.

        A refusal of the router's login by a member is raised immediately as well.
        """
        if preference.max_staleness is not None:
            self._learn_ages()
        try:
            async with asyncio.timeout(timeout):
                while not self._closed:
                    choice = preference.choose(self._trusted, threshold=self._threshold)
                    if choice is not None:
                        return choice
                    if self._check is None or self._check.done():
                        self._refused = None
                        self._check = self._loop.create_task(
                            self._check_once(), name=f"check {self.name}"
                        )
                    self._changed.clear()
                    await self._changed.wait()
                    if self._refused is not None:
                        raise self._refused
        except TimeoutError:
            pass
        raise NoMemberError(preference, self.name, self.causes)

    @property
    def causes(self) -> str:
        """Why the driver cannot reach members; nothing about those that it reaches.

        A member of another set is only named with its set: the driver forgets it.
        """
        servers = self._topology.server_descriptions().values()
        errors = [plain_text(server.error) for server in servers if server.error]
        return "; ".join([*self._strangers.values(), *errors])

    def record_answer(self, address: Address, hello: Mapping[str, Any], asked: float) -> None:
        """Record a member's answer to the driver's hello; runs in the loop's thread.

        ``asked`` is when the driver sent its hello, by ``time.monotonic``.
        """
        if (name := hello["setName"]) != self.name:
            text = f"{format_address(address)} is a member of the set {name}, not of {self.name}"
            self._strangers[address] = text
        elif self._distrusted.get(address, asked) < asked:
            self.observe(address, hello)  # the driver publishes a new role up to a second later
            del self._distrusted[address]
            self._changed.set()

    def observe(self, address: Address, hello: Mapping[str, Any]) -> None:
        """Record a hello; if a secondary names a wrong primary, that one's answer corrects it."""
        known = self._members.get(address)
        if hello.get("setName") != self.name or known is None:
            return
        if hello.get("isWritablePrimary") or hello.get("ismaster"):
            self._promote(address)
        elif hello.get("secondary"):
            self._members[address] = replace(known, role="secondary")
            for host in self.hosts:
                if host != address and format_address(host) == hello.get("primary"):
                    self._promote(host)

    def _promote(self, primary: Address) -> None:
        """Record this member as the only primary."""
        for address, member in self._members.items():
            if address != primary and member.role == "primary":
                self._members[address] = replace(member, role="secondary")
        known = self._members.get(primary, Member("primary"))
        self._members[primary] = replace(known, role="primary")
        self._changed.set()

    @property
    def _trusted(self) -> dict[Address, Member]:
        return {at: member for at, member in self._members.items() if at not in self._distrusted}

    def distrust(self, address: Address) -> None:
        """Do not select ``address`` again before the driver has checked it, or the set."""
        self._distrusted[address] = time.monotonic()

    def renew(self) -> None:
        """Replace the driver's client: a client reads its certificates only once."""
        if self._closed:
            return
        former, listener = self._client, self._listener
        try:
            self._client = self._connect()
        except (PyMongoError, OSError, ValueError) as error:  # it reads the certificates again
            log.error("cannot reconnect for monitoring", set=self.name, error=str(error))
            self._listener = listener
            return
        self._end_client(former)

    async def close(self) -> None:
        """Stop the monitoring, with a bounded wait for an unresponsive member."""
        self._listener = None
        self._changed.set()
        if self._check is not None:
            self._check.cancel()
            await asyncio.wait({self._check})
        ended = self._end_client(self._client)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await ended.wait()
        except TimeoutError:
            log.info("monitoring ends later", set=self.name)

    def _end_client(self, client: "AsyncIOMotorClient[dict[str, Any]]") -> asyncio.Event:
        """Close a client of the driver in a thread; return an event that is set at the end."""
        ended = asyncio.Event()

        def end() -> None:
            # The driver ends its sessions on the server and waits for the reply.
            client.delegate.close()
            with suppress(RuntimeError):  # the loop did not wait for this and is closed
                self._loop.call_soon_threadsafe(ended.set)

        # Not a thread of the loop's executor: the loop would wait for it at shutdown.
        threading.Thread(target=end, name=f"end of {self.name}", daemon=True).start()
        return ended

    async def _check_once(self) -> None:
        """Make the driver check its members; the next check begins a pause later at the earliest.

        The driver publishes its events once a second, and its description is up to date.
        """
        began = time.monotonic()
        try:
            await self._ask_driver()
            if not self._closed:
                self.topology_changed(*_members_of(self._topology))
        except Exception:  # a defect
            log.exception("Unexpected error", set=self.name)
        self._distrusted = {at: when for at, when in self._distrusted.items() if when > began}
        self._changed.set()
        await asyncio.sleep(_CHECK_PAUSE)
        self._changed.set()

    async def _ask_driver(self) -> None:
        """Make the driver select a primary and run a query without results on it.

        If that member does not answer or is no longer the primary, the driver checks it again.
        """
        try:
            await self._client["admin"].command({"find": "nothing", "limit": 1})
            self._lost = False
        except OperationFailure as error:
            self._refused, self._lost = self._refusal(error), False  # the primary answers
        except PyMongoError as error:
            self._log_no_primary(error)

    def _refusal(self, error: OperationFailure) -> CommandError | None:
        """Return the error of a refused login, for which the driver distrusts the member."""
        if error.code not in (ErrorCode.AuthenticationFailed, ErrorCode.UserNotFound):
            return None
        user, reason = self._access.credentials, (error.details or {}).get("errmsg", str(error))
        return CommandError(error.code, f"cannot log in to {self.name} as {user}: {reason}")

    def _log_no_primary(self, error: PyMongoError) -> None:
        """Log what the driver knows of each member, once for each time without a primary."""
        report = log.debug if self._lost else log.warning
        members = self._known_of_members()
        report(NO_PRIMARY, set=self.name, members=members, error=plain_text(error))
        self._lost = True

    def _known_of_members(self) -> dict[str, str]:
        """Return why the driver cannot use each member, or the member's state, by its address."""
        known = {}
        for at, server in self._topology.server_descriptions().items():
            role, address = server.server_type_name, format_address(at)
            state = f"was {_ROLES[role]} at its last hello" if role in _ROLES else f"is {role}"
            known[address] = plain_text(server.error or f"{address} {state}")
        return known | {format_address(at): text for at, text in self._strangers.items()}

    def _learn_ages(self) -> None:
        """Update the members' last writes: the driver publishes no event for those."""
        for address, found in _members_of(self._topology)[0].items():
            if (known := self._members.get(address)) is not None:
                self._members[address] = replace(found, role=known.role)

    @property
    def _topology(self) -> Any:
        client: Any = self._client.delegate  # Motor's types declare its properties as methods
        return client.topology_description

    def topology_changed(self, members: dict[Address, Member], hosts: tuple[Address, ...]) -> None:
        """Store the members that the driver found; runs in the loop's thread."""
        if members != self._members:
            roles = {format_address(address): one.role for address, one in members.items()}
            log.info("members", set=self.name, roles=roles)
        self._members = members
        if hosts:
            self.hosts = hosts
        self._distrusted = {at: when for at, when in self._distrusted.items() if at in members}
        self._changed.set()

    @property
    def _closed(self) -> bool:
        return self._listener is None

    def report(self, by: object, finding: Callable[..., None], *arguments: object) -> None:
        """Pass a finding of the present client's listener from the driver's threads to the loop."""
        if by is self._listener and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(finding, *arguments)


def _login_options(access: Access) -> dict[str, Any]:
    credentials = access.credentials
    if credentials is None:
        return {}
    if credentials.mechanism == X509:
        return {"authSource": EXTERNAL, "authMechanism": X509}
    return {
        "username": credentials.user,
        "password": credentials.password,
        "authSource": credentials.source,
        "authMechanism": MECHANISM,
    }


def _tls_options(access: Access) -> dict[str, Any]:
    if access.tls is None:
        return {}
    files = access.tls.files
    options: dict[str, Any] = {
        "tls": True,
        "tlsCertificateKeyFile": str(files.own_certificate),
        "tlsAllowInvalidCertificates": files.invalid_certificates,
        "tlsAllowInvalidHostnames": files.invalid_certificates or files.invalid_hostnames,
    }
    if files.own_password is not None:
        options["tlsCertificateKeyFilePassword"] = files.own_password
    if files.ca is not None:
        options["tlsCAFile"] = str(files.ca)
    if files.crl is not None:
        options["tlsCRLFile"] = str(files.crl)
    return options


class _Listener(TopologyListener, ServerHeartbeatListener):
    def __init__(self, replica_set: MotorReplicaSet) -> None:
        self._replica_set = replica_set

    def opened(self, event: TopologyOpenedEvent) -> None:
        """Ignore the event: no members are known yet."""

    def description_changed(self, event: TopologyDescriptionChangedEvent) -> None:
        """Report the members."""
        to = self._replica_set
        to.report(self, to.topology_changed, *_members_of(event.new_description))

    def closed(self, event: TopologyClosedEvent) -> None:
        """Ignore the event: the monitoring has ended."""

    def started(self, event: ServerHeartbeatStartedEvent) -> None:
        """Ignore the event."""

    def succeeded(self, event: ServerHeartbeatSucceededEvent) -> None:
        """Report a member that answers, and its set."""
        hello, (host, port) = event.reply.document, event.connection_id
        if hello.get("setName"):
            to, asked = self._replica_set, time.monotonic() - event.duration
            to.report(self, to.record_answer, (host, port or 27017), hello, asked)

    def failed(self, event: ServerHeartbeatFailedEvent) -> None:
        """Ignore the event: the member's description has the error."""


def _members_of(topology: TopologyDescription) -> tuple[dict[Address, Member], tuple[Address, ...]]:
    members: dict[Address, Member] = {}
    hosts: list[Address] = []
    for (host, port), server in topology.server_descriptions().items():
        address = (host, port or 27017)
        hosts.append(address)
        if server.server_type_name in _ROLES:
            members[address] = Member(
                _ROLES[server.server_type_name],
                server.tags,
                round_trip=server.round_trip_time,
                last_write=server.last_write_date,
                seen=server.last_update_time,
            )
    return members, tuple(hosts)
