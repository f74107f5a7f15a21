"""Which member of a replica set to read from (docs/protocol.md, section 4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from shard_client.connection import Address

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


@dataclass(frozen=True, slots=True)
class Member:
    """What a member that is up says of itself: "primary" or "secondary", and its tags."""

    role: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadPreference:
    """A mode, and the tag sets of which a member must have one, the first that any member has.

    No tag sets ask for nothing; none apply to a primary that is asked for as such.
    """

    mode: str = "primary"
    tag_sets: tuple[_Tags, ...] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Self:
        """Return what a command's ``$readPreference``, which was checked, asks for."""
        given = document or {}
        tag_sets = tuple(frozenset(tags.items()) for tags in given.get("tags", ()))
        return cls(given.get("mode", "primary"), tag_sets)

    def choose(self, members: Mapping[Address, Member]) -> Address | None:
        """Return the member to read from, None if none will do."""
        for roles in _ROLES_BY_MODE[self.mode]:
            tagged = self.tag_sets if roles != _PRIMARY_ALONE else ()
            for tags in tagged or _ANY:
                for role in roles:
                    for address, member in members.items():
                        if member.role == role and tags <= member.tags.items():
                            return address
        return None


PRIMARY: Final = ReadPreference()
