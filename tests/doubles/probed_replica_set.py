"""A replica set whose members are probed on demand, without background tasks or threads."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import structlog

from shard_client.backoff import Backoff
from shard_client.errors import CommandError, NetworkError
from shard_client.replica_set.replica_set import Member, NoMemberError, ReadPreference, ReplicaSet
from shard_client.wire.connection import MONITOR_NAME, Address, Connection, parse_address

log = structlog.get_logger()


class ProbedReplicaSet(ReplicaSet):
    """A ``ReplicaSet`` that sends its members a hello when no known member is suitable.

    It runs on any event loop, including one in virtual time. ``MotorReplicaSet`` notices changes
    sooner, but needs the driver's monitoring.
    """

    def __init__(self, name: str, seeds: Iterable[Address], *, probe_timeout: float = 2.0) -> None:
        super().__init__(name, seeds)
        self._probe_timeout = probe_timeout

    async def select(self, preference: ReadPreference, timeout: float) -> Address:
        """Return a member for the read preference, probing for up to ``timeout`` seconds.

        Raises CommandError (133, labelled resumable).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        backoff = Backoff(0.02, 1.0)
        while (found := preference.choose(self._members)) is None:
            for address in self.hosts:
                await self._probe(address)
            if (found := preference.choose(self._members)) is not None:
                break
            pause = backoff.next_pause()
            if loop.time() + pause >= deadline:
                raise NoMemberError(preference, self.name)
            await asyncio.sleep(pause)
        return found

    def observe(self, address: Address, hello: Mapping[str, Any]) -> None:
        """Record the member's current role."""
        self._note(address, hello)

    def distrust(self, address: Address) -> None:
        """Forget the member's role, so that it is probed again."""
        self._members.pop(address, None)

    def renew(self) -> None:
        """Do nothing: each probe has a connection of its own."""

    async def close(self) -> None:
        """Do nothing: no connection stays open."""

    async def _probe(self, address: Address) -> None:
        try:
            connection = await Connection.open(
                address, timeout=self._probe_timeout, app_name=MONITOR_NAME
            )
        except (NetworkError, CommandError) as error:
            log.info("member does not answer", set=self.name, member=address, error=str(error))
            self._members.pop(address, None)
            return
        connection.abort()
        self._note(address, connection.hello)

    def _note(self, address: Address, hello: Mapping[str, Any]) -> None:
        if hello.get("setName") != self.name:
            self._members.pop(address, None)
        elif hello.get("isWritablePrimary") or hello.get("ismaster"):
            self._members = {at: one for at, one in self._members.items() if one.role != "primary"}
            self._members[address] = Member("primary", hello.get("tags", {}))
            self.hosts = _hosts(hello) or (address,)
        elif hello.get("secondary"):
            self._members[address] = Member("secondary", hello.get("tags", {}))
            # Only a primary's host list removes members.
            self.hosts = tuple(dict.fromkeys((*self.hosts, *_hosts(hello))))
        else:
            self._members.pop(address, None)


def _hosts(hello: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the addresses in a hello, whose bytes a test may have garbled."""
    hosts, named = hello.get("hosts"), []
    for host in hosts if isinstance(hosts, list) else ():
        with suppress(ValueError, AttributeError):
            named.append(parse_address(host))
    return tuple(named)
