"""Read preferences: the choice of a replica set member, as in the drivers' server selection.

The functions do no I/O: they choose among the given members. The choice is by mode, then by tags,
then at random among the members whose round trip is at most a threshold longer than the shortest
(by default ``LOCAL_THRESHOLD``).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from shard_client.wire.connection import Address

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


def fresh_enough(
    members: Mapping[Address, Member], most: float, heartbeat: float = HEARTBEAT
) -> dict[Address, Member]:
    """Return the members without the secondaries that are more than ``most`` seconds behind.

    With a primary, a secondary's staleness is the age of its last write minus the age of the
    primary's, each at the time of its own report. Without a primary, it is the newest last write of
    all members minus its own. One ``heartbeat`` is added, since the lag can grow between two
    hellos. A secondary that has not reported its last write is kept. Source: the drivers'
    specification of max staleness.
    """
    measured = {
        at: (each.seen - each.last_write, each.last_write)
        for at, each in members.items()
        if each.seen is not None and each.last_write is not None
    }
    primary = next((at for at in measured if members[at].role == "primary"), None)
    newest = max((written for _, written in measured.values()), default=0.0)

    def behind(at: Address) -> float:
        ago, written = measured[at]
        return (ago - measured[primary][0] if primary is not None else newest - written) + heartbeat

    return {
        at: each
        for at, each in members.items()
        if each.role == "primary" or at not in measured or behind(at) <= most
    }


def within_window(
    suitable: Sequence[Address], members: Mapping[Address, Member], threshold: float
) -> list[Address]:
    """Return the ``suitable`` members within the latency window, in their order.

    A member with an unknown round trip is included: otherwise it would never be measured.
    """
    trips = [trip for each in suitable if (trip := members[each].round_trip) is not None]
    most = min(trips, default=0.0) + threshold
    return [each for each in suitable if (members[each].round_trip or 0.0) <= most]


PRIMARY: Final = ReadPreference()
