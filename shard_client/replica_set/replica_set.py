"""What the router needs to know of a replica set: its name, its members, its primary."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.replica_set.read_preference import ReadPreference
from shard_client.wire.connection import Address, format_address, parse_address


class ReplicaSet(Protocol):
    """A replica set whose members and primary something monitors.

    Implementations: ``MotorReplicaSet`` (the driver's monitoring), ``ProbedReplicaSet`` (asks hello
    when asked, no threads: what a simulated loop can run).
    """

    @property
    def name(self) -> str:
        """The set's name."""
        ...

    @property
    def hosts(self) -> tuple[Address, ...]:
        """The members known now; at first the seeds."""
        ...

    async def primary(self, timeout: float) -> Address:
        """Return the primary's address, waiting up to ``timeout`` seconds for one.

        Raises CommandError (133 FailedToSatisfyReadPreference, labelled resumable) when none came.
        """
        ...

    async def select(self, preference: ReadPreference, timeout: float) -> Address:
        """Return a member for a read preference.

        Waits and raises as ``primary``.
        """
        ...

    def observe(self, address: Address, hello: Mapping[str, Any]) -> None:
        """Be told what a member has just answered to a hello; no I/O of its own."""
        ...

    def invalidate(self, address: Address) -> None:
        """Say that ``address`` does not answer or answers as no primary; no I/O of its own."""
        ...

    async def close(self) -> None:
        """End the monitoring."""
        ...


def named_hosts(names: Any) -> tuple[Address, ...]:
    """Return the addresses in a hello's list of ``host:port``; what is malformed is left out.

    A member that is only reachable under a malformed name cannot be reached.
    """
    found = []
    for name in names if isinstance(names, (list, tuple)) else ():
        with suppress(ValueError, AttributeError):
            found.append(parse_address(name))
    return tuple(found)


def parse_hosts(text: str) -> tuple[str, tuple[Address, ...]]:
    """Split ``rsName/h1:p,h2:p`` into the name and the addresses; raises ValueError.

    Source: docs/protocol.md, section 6.
    """
    name, slash, hosts = text.partition("/")
    if not slash or not name or not hosts:
        raise ValueError(f"not of the form setName/host:port[,host:port]: {text!r}")
    return name, tuple(parse_address(host) for host in hosts.split(","))


def host_string(name: str, hosts: Sequence[Address]) -> str:
    """Return ``rsName/h1:p,h2:p``, as config.shards writes it."""
    return f"{name}/" + ",".join(map(format_address, hosts))


def no_member(preference: ReadPreference, name: str) -> CommandError:
    """Return what mongos answers when a replica set has no member to talk to."""
    tags = ", ".join(map(_shown, preference.tag_sets))
    tags = f", tags: [ {tags} ]" if tags else ""
    return CommandError(
        ErrorCode.FailedToSatisfyReadPreference,
        f'Could not find host matching read preference {{ mode: "{preference.mode}"{tags} }} '
        f"for set {name}",
        labels=(RESUMABLE_LABEL,),
    )


def _shown(tags: Iterable[tuple[str, str]]) -> str:
    shown = ", ".join(f'{name}: "{value}"' for name, value in sorted(tags))
    return f"{{ {shown} }}" if shown else "{}"
