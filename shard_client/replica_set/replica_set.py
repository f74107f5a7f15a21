"""Replica sets: their interface, their members, and the choice of one by a read preference.

The choice does no I/O. It is by mode, then by tags, then at random among the members whose round
trip is at most a threshold longer than the shortest (by default ``LOCAL_THRESHOLD``), as in the
drivers' server selection.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from shard_client.errors import RESUMABLE_LABEL, CommandError, ErrorCode
from shard_client.wire.connection import Address, parse_address

_Tags = frozenset[tuple[str, str]]

_ANY: Final[tuple[_Tags, ...]] = (frozenset(),)
_PRIMARY_ALONE: Final = ("primary",)
_ROLES_BY_MODE: Final = {
    "primary": (_PRIMARY_ALONE,),
    "primaryPreferred": (_PRIMARY_ALONE, ("secondary",)),
    "secondary": (("secondary",),),
    "secondaryPreferred": (("secondary",), _PRIMARY_ALONE),
    "nearest": (("primary", "secondary"),),
}
"""The roles that serve each mode, grouped by rank, the preferred rank first."""

LOCAL_THRESHOLD: Final = 0.015
"""Seconds by which a member's round trip may exceed the shortest one: mongos's default."""

HEARTBEAT: Final = 10.0
"""Seconds between two hellos of the monitoring: the drivers' default."""

Draw = Callable[[Sequence[Address]], Address]
"""Picks one of several addresses."""


@dataclass(frozen=True, slots=True)
class Member:
    """The description of an available member.

    ``role`` is "primary" or "secondary"; ``tags`` are the member's tags; ``round_trip`` is the
    average time of its hellos in seconds, None if unknown. ``last_write`` is the time of its last
    write by its own clock, ``seen`` the time at which it reported that; both are in seconds, None
    if unknown. Comparisons ignore ``round_trip``, ``last_write`` and ``seen``, which change with
    each hello.
    """

    role: str
    tags: Mapping[str, str] = field(default_factory=dict)
    round_trip: float | None = field(default=None, compare=False)
    last_write: float | None = field(default=None, compare=False)
    seen: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReadPreference:
    """A mode, a list of tag sets, and the permitted staleness.

    The first tag set that any member matches selects the members. An empty list matches every
    member. Tag sets do not apply where a mode selects the primary alone. A secondary can be at most
    ``max_staleness`` seconds behind; None sets no limit.
    """

    mode: str = "primary"
    tag_sets: tuple[_Tags, ...] = ()
    max_staleness: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Self:
        """Build the read preference from a command's validated ``$readPreference``."""
        given = document or {}
        tag_sets = tuple(frozenset(tags.items()) for tags in given.get("tags", ()))
        staleness = given.get("maxStalenessSeconds")
        return cls(given.get("mode", "primary"), tag_sets, float(staleness) if staleness else None)

    def choose(
        self,
        members: Mapping[Address, Member],
        *,
        threshold: float = LOCAL_THRESHOLD,
        draw: Draw = random.choice,
    ) -> Address | None:
        """Return the member to read from, or None if no member is suitable.

        ``threshold`` is in seconds; ``draw`` picks one of the members within the latency window.
        """
        if self.max_staleness is not None:
            members = fresh_enough(members, self.max_staleness)
        suitable = self._suitable(members)
        if len(suitable) < 2:
            return suitable[0] if suitable else None
        return draw(within_window(suitable, members, threshold))

    def _suitable(self, members: Mapping[Address, Member]) -> list[Address]:
        """Return the members that match the best available role and the first matching tag set."""
        for roles in _ROLES_BY_MODE[self.mode]:
            tagged = self.tag_sets if roles != _PRIMARY_ALONE else ()
            for tags in tagged or _ANY:
                suitable = [
                    address
                    for address, member in members.items()
                    if member.role in roles and tags <= member.tags.items()
                ]
                if suitable:
                    return suitable
        return []


def fresh_enough(members: Mapping[Address, Member], most: float) -> dict[Address, Member]:
    """Return the members without the secondaries that are more than ``most`` seconds behind.

    With a primary, a secondary's staleness is the age of its last write minus the age of the
    primary's, each at the time of its own report. Without a primary, it is the newest last write of
    all members minus its own. One heartbeat is added, since the lag can grow between two
    hellos. A secondary that has not reported its last write is kept. Source: the drivers'
    specification of max staleness.
    """
    measured = {
        at: (member.seen - member.last_write, member.last_write)
        for at, member in members.items()
        if member.seen is not None and member.last_write is not None
    }
    primary = next((at for at in measured if members[at].role == "primary"), None)
    newest = max((written for _, written in measured.values()), default=0.0)

    def behind(at: Address) -> float:
        ago, written = measured[at]
        return (ago - measured[primary][0] if primary is not None else newest - written) + HEARTBEAT

    return {
        at: member
        for at, member in members.items()
        if member.role == "primary" or at not in measured or behind(at) <= most
    }


def within_window(
    suitable: Sequence[Address], members: Mapping[Address, Member], threshold: float
) -> list[Address]:
    """Return the ``suitable`` members within the latency window, in their order.

    A member with an unknown round trip is included: otherwise it would never be measured.
    """
    trips = [trip for member in suitable if (trip := members[member].round_trip) is not None]
    most = min(trips, default=0.0) + threshold
    return [member for member in suitable if (members[member].round_trip or 0.0) <= most]


PRIMARY: Final = ReadPreference()


class ReplicaSet(ABC):
    """A monitored replica set: ``name``, and ``hosts``, the members known, initially the seeds.

    ``MotorReplicaSet`` is one, by the driver's monitoring; tests have one without threads.
    """

    def __init__(self, name: str, seeds: Iterable[Address]) -> None:
        self.name = name
        self.hosts = tuple(seeds)
        self._members: dict[Address, Member] = {}

    @property
    def primary(self) -> Address | None:
        """The primary, as far as is known; None during an election."""
        return PRIMARY.choose(self._trusted)

    @property
    def _trusted(self) -> Mapping[Address, Member]:
        return self._members

    @property
    def causes(self) -> str:
        """Why members cannot be used, such as "db1:27018: Connection refused"; may be empty."""
        return ""

    @abstractmethod
    async def select(self, preference: ReadPreference, timeout: float) -> Address:
        """Return a member for a read preference, waiting up to ``timeout`` seconds for one.

        Raises CommandError (133 FailedToSatisfyReadPreference, labelled resumable) on a timeout.
        """

    @abstractmethod
    def observe(self, address: Address, hello: Mapping[str, Any]) -> None:
        """Record the role in a member's hello, and the primary that it names; does no I/O."""

    @abstractmethod
    def distrust(self, address: Address) -> None:
        """Do not select ``address`` again before a new hello has shown its role; does no I/O."""

    @abstractmethod
    def renew(self) -> None:
        """Reconnect for the monitoring, with the current certificates."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the monitoring, in bounded time."""


def parse_hosts(text: str) -> tuple[str, tuple[Address, ...]]:
    """Split ``rsName/h1:p,h2:p`` into the name and the addresses; raises ValueError.

    Source: docs/protocol.md#sharded-cluster.
    """
    name, slash, hosts = text.partition("/")
    if not slash or not name or not hosts:
        raise ValueError(f"must be setName/host:port[,host:port], not {text!r}")
    return name, tuple(parse_address(host) for host in hosts.split(","))


class NoMemberError(CommandError):
    """A replica set has no suitable member; the message is that of mongos.

    As text, for an operator, it is ``cause`` alone: what is known of the members, such as
    "db1:27018: Connection refused".
    """

    def __init__(self, preference: ReadPreference, name: str, cause: str = "") -> None:
        tags = ", ".join(map(_shown, preference.tag_sets))
        tags = f", tags: [ {tags} ]" if tags else ""
        super().__init__(
            ErrorCode.FailedToSatisfyReadPreference,
            f'Could not find host matching read preference {{ mode: "{preference.mode}"{tags} }} '
            f"for set {name}" + (f": {cause}" if cause else ""),
            labels=(RESUMABLE_LABEL,),
        )
        wanted = "the primary" if preference == PRIMARY else "suitable"
        self._cause = cause or f"none of its members is {wanted}"

    def __str__(self) -> str:
        return self._cause


def _shown(tags: Iterable[tuple[str, str]]) -> str:
    shown = ", ".join(f'{name}: "{value}"' for name, value in sorted(tags))
    return f"{{ {shown} }}" if shown else "{}"
