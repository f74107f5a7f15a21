"""Places: where the rows of a current table sort.

Rows are ordered by database, collection and key. A place is these three as one string, which sorts
alike: names and keys, which are JSON, have no zero character.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEY_COLUMNS = ("database", "collection", "key")
KEY_RANGE = "keyRange"
"""The partition column of a current table."""
LAST = "\U0010ffff" * 64
"""Sorts after all keys, which are JSON, and after all names, which have at most 255 bytes."""
KEY_CHARACTERS = 1024
"""The longest part of a key in the statistics of a file."""
_LAST_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000


def places_of(rows: pa.Table | pa.RecordBatch, *names: str) -> pa.Array:
    """Return the places of rows with the columns `names`, by default KEY_COLUMNS."""
    places = pc.binary_join_element_wise(*(rows[name] for name in names or KEY_COLUMNS), "\0")
    return places.combine_chunks() if isinstance(places, pa.ChunkedArray) else places


def names_in(places: pa.Array) -> list[pa.Array]:
    """Return the KEY_COLUMNS of places."""
    parts, size = pc.list_flatten(pc.split_pattern(places, "\0")), 3 * len(places)
    return [parts.take(pa.array(np.arange(start, size, 3))) for start in range(3)]


def parents_of(place: str) -> tuple[str, str]:
    """Return the places at which the database and the collection of a place begin."""
    parts = place.split("\0")
    return f"{parts[0]}\0", "\0".join([*parts[:2], ""])


def last_before(place: str) -> str:
    """Return the last place before another one."""
    head, code = place[:-1], ord(place[-1])
    if not code:
        return head
    return f"{head}{chr(_LAST_BEFORE_SURROGATES if code == _AFTER_SURROGATES else code - 1)}{LAST}"


def cut_place(place: str) -> str:
    """Return the longest place, up to this one, whose key has less than KEY_CHARACTERS."""
    names, separator, key = place.rpartition("\0")
    return names + separator + key[: KEY_CHARACTERS - 1]
