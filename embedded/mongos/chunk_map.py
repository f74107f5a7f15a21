"""The chunks of a sharded collection: key ranges and the shards that own them."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from embedded.errors import bad_value
from embedded.mongos.shard_key import KeyValues, ShardKey
from embedded.storage.ordering import SortKey, sort_key


def order(key: KeyValues) -> tuple[SortKey, ...]:
    """Return a tuple that compares as the shard key does, in BSON order."""
    return tuple(sort_key(value) for value in key)


@dataclass(frozen=True)
class Chunk:
    """A range of keys that one shard owns, including ``low`` and excluding ``high``."""

    low: KeyValues
    high: KeyValues
    shard: str


class ChunkMap:
    """The chunks of one collection, which cover the whole key space without gaps or overlaps.

    Ranges compare as in BSON, including MinKey, MaxKey and mixed types.

    Args:
        key: the collection's shard key.
        chunks: in any order; together they cover every key.

    Raises:
        ValueError: the chunks leave a gap or overlap.
    """

    def __init__(self, key: ShardKey, chunks: Iterable[Chunk]) -> None:
        self.key = key
        self._chunks = sorted(chunks, key=lambda chunk: order(chunk.low))
        self._lows = [order(chunk.low) for chunk in self._chunks]
        ends = [(chunk.low, chunk.high) for chunk in self._chunks]
        edges = [key.lowest, *(high for _, high in ends)]
        if [*(low for low, _ in ends), key.highest] != edges:
            raise ValueError(f"chunks of {key.pattern} do not tile the key space: {ends}")

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def shards(self) -> set[str]:
        """The shards that own at least one chunk."""
        return {chunk.shard for chunk in self._chunks}

    def chunk_of(self, key: KeyValues) -> Chunk:
        """Return the chunk that contains ``key``; the last chunk also contains the highest key."""
        return self._chunks[max(0, bisect_right(self._lows, order(key)) - 1)]

    def owner_of_document(self, document: Mapping[str, Any]) -> str:
        """Return the shard that owns a document.

        Raises:
            CommandError: 61 if a key field holds an array.
        """
        return self.chunk_of(self.key.of_document(document)).shard

    def owners(self, prefix: KeyValues) -> set[str]:
        """Return the shards that own any key that begins with these values."""
        if len(prefix) == len(self.key.fields):
            return {self.chunk_of(prefix).shard}
        width = len(prefix)
        lowest = order((*prefix, *self.key.lowest[width:]))
        highest = order((*prefix, *self.key.highest[width:]))
        return {
            chunk.shard
            for chunk in self._chunks
            if order(chunk.low) <= highest and lowest < order(chunk.high)
        }

    def split(self, at: KeyValues) -> None:
        """Split the chunk that contains ``at``; the second part starts with ``at``.

        Raises:
            CommandError: 2 BadValue if ``at`` is already a bound.
        """
        chunk = self.chunk_of(at)
        if order(at) in (order(chunk.low), order(chunk.high)):
            raise bad_value(
                f"new split key {self.key.document(at)} is a boundary key of existing chunk "
                f"[{self.key.document(chunk.low)},{self.key.document(chunk.high)})",
            )  # fmt: skip
        left, right = replace(chunk, high=at), replace(chunk, low=at)
        index = self._chunks.index(chunk)
        self._chunks[index : index + 1] = [left, right]
        self._lows[index : index + 1] = [order(left.low), order(right.low)]

    def move(self, chunk: Chunk, to: str) -> None:
        """Assign ``chunk`` to the shard ``to``."""
        self._chunks[self._chunks.index(chunk)] = replace(chunk, shard=to)
