"""How much of one event the router looks at for its filters.

Beyond these bounds the evaluation of an event would delay all clients: the shards decide then.
"""

from collections.abc import Hashable
from typing import Final

MOST_FIELDS: Final = 20_000
"""Fields and array elements over which one reading, or one projection, of an event walks."""

MOST_LOOKS: Final = 20_000
"""Values that the conditions of all filters look at in one event: each element of an array counts
for each condition on it."""

MOST_COMPARED: Final = 64 * 1024
"""Bytes of a value that is compared as a whole: a document or an array with such an operand, a
string that a regular expression may match."""


class TooLargeError(ValueError):
    """An event has more at the paths of filters than the router looks at.

    ``owners`` are those of the filters that need it; a projection or a reading names none.
    """

    def __init__(self, owners: frozenset[Hashable] = frozenset()) -> None:
        super().__init__("an event is too large for the router's filters")
        self.owners = owners
