"""Which member of a replica set to read from, as the drivers' server selection has it.

Pure: it is given what is known of the members and makes a choice. The rules: by mode, then by tags,
then at random among those whose round trip is at most ``LOCAL_THRESHOLD`` longer than the shortest.
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
"""The roles of the members that serve a mode, those of one rank together, the best first."""

LOCAL_THRESHOLD: Final = 0.015
"""Seconds of round trip by which a member may be farther than the nearest: mongos's default."""

HEARTBEAT: Final = 10.0
"""Seconds from one hello of the monitoring to the next: the drivers' default."""

Draw = Callable[[Sequence[Address]], Address]
"""Picks one of several."""


@dataclass(frozen=True, slots=True)
class Member:
    """What is known of a member that is up.

    ``role`` is "primary" or "secondary", ``tags`` are the member's own, ``round_trip`` is the
    average time of its hellos in seconds, None if it is not known yet. ``last_write`` is when it
    wrote last by its own clock, ``seen`` when it said so, both in seconds, None if not known: they
    change with each hello and do not count when two descriptions are compared.
    """

    role: str
    tags: Mapping[str, str] = field(default_factory=dict)
    round_trip: float | None = field(default=None, compare=False)
    last_write: float | None = field(default=None, compare=False)
    seen: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReadPreference:
    """A mode, and the tag sets of which a member must have one, the first that any member has.

    No tag sets ask for nothing; none apply to a primary that is asked for as such. A secondary may
    be ``max_staleness`` seconds behind, None: as much as it likes.
    """

    mode: str = "primary"
    tag_sets: tuple[_Tags, ...] = ()
    max_staleness: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Self:
        """Return what a command's ``$readPreference``, which was checked, asks for."""
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
        """Return the member to read from, None if none will do.

        ``threshold`` is in seconds; ``draw`` picks one of the members that are near enough.
        """
        if self.max_staleness is not None:
            members = fresh_enough(members, self.max_staleness)
        suitable = self._suitable(members)
        if len(suitable) < 2:
            return suitable[0] if suitable else None
        return draw(within_window(suitable, members, threshold))

    def _suitable(self, members: Mapping[Address, Member]) -> list[Address]:
        """Return the members of the best role and the first tag set that any member has."""
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

    A secondary is behind by how much longer ago than the primary it wrote last, each measured when
    it said so, or without a primary than the secondary that wrote last; and by the time between two
    hellos, since that may have changed meanwhile. One that has not told is kept. Source: the
    drivers' specification of max staleness.
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
    """Return those of the ``suitable`` members that are near enough, in their order.

    A member whose round trip is not known counts as near: it would never be measured otherwise.
    """
    trips = [trip for each in suitable if (trip := members[each].round_trip) is not None]
    most = min(trips, default=0.0) + threshold
    return [each for each in suitable if (members[each].round_trip or 0.0) <= most]


PRIMARY: Final = ReadPreference()
