"""The interface of a replica set: its name, its members, its primary."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.replica_set.read_preference import ReadPreference
from shard_client.wire.connection import Address, parse_address


class ReplicaSet(Protocol):
    """A monitored replica set.

    ``MotorReplicaSet`` is one, by the driver's monitoring; tests have one without threads.
    """

    @property
    def name(self) -> str:
        """The set's name."""
        ...

    @property
    def hosts(self) -> tuple[Address, ...]:
        """The members currently known; initially the seeds."""
        ...

    async def select(self, preference: ReadPreference, timeout: float) -> Address:
        """Return a member for a read preference, waiting up to ``timeout`` seconds for one.

        Raises CommandError (133 FailedToSatisfyReadPreference, labelled resumable) on a timeout.
        """
        ...

    @property
    def causes(self) -> str:
        """Why members cannot be used, such as "db1:27018: Connection refused"; may be empty."""
        ...

    def observe(self, address: Address, hello: Mapping[str, Any]) -> None:
        """Record a member's latest hello reply; does no I/O."""
        ...

    def invalidate(self, address: Address) -> None:
        """Record that ``address`` does not answer or is not a primary; does no I/O."""
        ...

    def renew(self) -> None:
        """Reconnect for the monitoring, with the current certificates."""
        ...

    async def close(self) -> None:
        """Stop the monitoring."""
        ...


def named_hosts(names: Any) -> tuple[Address, ...]:
    """Return the addresses in a hello's list of ``host:port``, without malformed ones.

    A member that is only reachable under a malformed name cannot be reached.
    """
    found = []
    for name in names if isinstance(names, (list, tuple)) else ():
        with suppress(ValueError, AttributeError):
            found.append(parse_address(name))
    return tuple(found)


def parse_hosts(text: str) -> tuple[str, tuple[Address, ...]]:
    """Split ``rsName/h1:p,h2:p`` into the name and the addresses; raises ValueError.

    Source: docs/protocol.md#sharded-cluster.
    """
    name, slash, hosts = text.partition("/")
    if not slash or not name or not hosts:
        raise ValueError(f"must be setName/host:port[,host:port], not {text!r}")
    return name, tuple(parse_address(host) for host in hosts.split(","))


def no_member(preference: ReadPreference, name: str, cause: str = "") -> CommandError:
    """Return the error that mongos reports when a replica set has no suitable member.

    ``cause`` is what is known of the members, such as "db1:27018: Connection refused".
    """
    tags = ", ".join(map(_shown, preference.tag_sets))
    tags = f", tags: [ {tags} ]" if tags else ""
    return CommandError(
        ErrorCode.FailedToSatisfyReadPreference,
        f'Could not find host matching read preference {{ mode: "{preference.mode}"{tags} }} '
        f"for set {name}" + (f": {cause}" if cause else ""),
        labels=(RESUMABLE_LABEL,),
    )


def why_no_member(error: CommandError) -> str:
    """Return the message of an error for an operator: of `no_member`, only what is known."""
    _words, found, rest = error.message.partition("} for set ")
    if error.code != ErrorCode.FailedToSatisfyReadPreference or not found:
        return str(error)
    _name, _colon, cause = rest.partition(": ")
    return cause or "none of its members is the primary"


def _shown(tags: Iterable[tuple[str, str]]) -> str:
    shown = ", ".join(f'{name}: "{value}"' for name, value in sorted(tags))
    return f"{{ {shown} }}" if shown else "{}"
