"""How much work the router does for the filters and projections of one event.

Work is counted in units of about half a microsecond: a field or an array element that is
walked over or is missing, a value that a condition looks at, a number of bytes. Beyond
``MOST_WORK``, some 15 ms, the event would delay all clients: the shards decide then.
"""

from collections.abc import Hashable
from typing import Final

MOST_WORK: Final = 30_000
"""Units for all filters that meet one event together, and again for all projections of it."""

UNIT_BYTES: Final = 512
"""Bytes of strings and binary data that are compared, decoded or copied for one unit."""

NESTED_UNIT_BYTES: Final = 4
"""Bytes of documents and arrays that are compared as a whole for one unit: they are walked over."""

DECIMAL_UNITS: Final = 4
"""Units for an equality with a decimal, besides that for any value."""


class TooLargeError(ValueError):
    """An event needs more work than the router does for its filters.

    ``owners`` are those of the filters that need most of it; a projection or a reading names none.
    """

    def __init__(self, owners: frozenset[Hashable] = frozenset()) -> None:
        super().__init__("an event is too large for the router's filters")
        self.owners = owners


class Allowance:
    """The units of work that are ``left`` for one event."""

    __slots__ = ("left",)

    def __init__(self, left: int = MOST_WORK) -> None:
        self.left = left

    def take(self, units: int) -> None:
        """Do that much work. Raises TooLargeError if less is left."""
        self.left -= units
        if self.left < 0:
            raise TooLargeError
