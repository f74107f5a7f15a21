"""The checksum of rows: their number, and a sum of hashes that does not depend on their order.

A table knows the checksum of all its rows, so that damage of any age is found without the stream.
The hash of a row is defined here, so that all versions of pyarrow and numpy agree on it. Numbers
have 64 bits and no sign, and wrap:

- An integer, a boolean, a date in days and a timestamp in microseconds is a number itself, a float
  is the bits of its double (of each NaN those that Spark writes), a text (UTF-8) or bytes are their
  length, a decimal is its text. A list or a map is its length plus the polynomial, below, of the
  hashes of its elements, which are rows of their own. A struct is 1, and its fields are columns
  beside it.
- A value that is not null adds `mix(number + tag)`, with the tag of its column. So a column that is
  null everywhere adds nothing, and the order of columns does not count.
- The bytes of all texts of a row follow each other in the order of their columns' tags, with zeros
  up to a multiple of eight. These little-endian words w(i) add a polynomial: the sum of
  `(v(i) ^ v(i) >> 32) * BASE**i`, where v(i) is `w(i) * MIX`. Without the factor, words whose
  halves are equal would change places unseen: only the powers' lower halves would count.
- The hash of the row is `mix` of the sum.

Needs numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_MODULUS = 1 << 64
_BASE = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_33, _32 = np.uint64(33), np.uint64(32)
# Words whose powers of the base are in a table, and bytes of rows that are hashed together.
_BLOCK = 1 << 14
_SLICE_BYTES = 1 << 23
_NAN = pa.scalar(float("nan"))
_PADS = pa.array([b"\0" * size for size in range(8)], pa.binary())


@dataclass(frozen=True)
class Checksum:
    """The number of rows, and the sum of their hashes in hexadecimal digits."""

    rows: int = 0
    hashes: str = "0"

    @classmethod
    def of(cls, rows: pa.Table | pa.RecordBatch) -> Checksum:
        """Return the checksum of rows."""
        names = sorted(rows.schema.names, key=_tag)
        total = 0
        for part in _slices(rows.select(names)):
            columns = zip(names, part.columns, strict=True)
            total += int(_hashes(dict(columns), part.num_rows).sum(dtype=np.uint64))
        return cls(rows.num_rows, f"{total % _MODULUS:x}")

    def __add__(self, other: Checksum) -> Checksum:
        total = int(self.hashes, 16) + int(other.hashes, 16)
        return Checksum(self.rows + other.rows, f"{total % _MODULUS:x}")

    def __sub__(self, other: Checksum) -> Checksum:
        total = int(self.hashes, 16) - int(other.hashes, 16)
        return Checksum(self.rows - other.rows, f"{total % _MODULUS:x}")


NO_ROWS = Checksum()


def _slices(rows: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, rows.num_rows * _SLICE_BYTES // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, count):
        part = rows.slice(start, count)
        yield from part.combine_chunks().to_batches() if isinstance(part, pa.Table) else [part]


def _hashes(columns: dict[str, pa.Array], count: int) -> Words:
    """Return the hashes of `count` rows."""
    total = np.zeros(count, np.uint64)
    texts: list[tuple[np.uint64, pa.Array]] = []
    for name, column in columns.items():
        _add(name, column, total, texts)
    if texts:
        total += _joined([text for _, text in sorted(texts, key=lambda each: each[0])], count)
    return _mix(total)


def _add(
    path: str, column: pa.Array, total: Words, texts: list[tuple[np.uint64, pa.Array]]
) -> None:
    """Add what a column adds to `total`, and its texts with its tag to `texts`."""
    kind, tag = column.type, _tag(path)
    if column.null_count == len(column):
        return
    if pa.types.is_dictionary(kind) or pa.types.is_decimal(kind):
        _add(path, column.cast(getattr(kind, "value_type", pa.string())), total, texts)
        return
    if pa.types.is_struct(kind):
        for field, child in zip(kind, column.flatten(), strict=True):
            _add(f"{path}\0{field.name}", child, total, texts)
        numbers = np.ones(len(column), np.uint64)
    elif pa.types.is_nested(kind):
        numbers = _lists(column)
    elif pa.types.is_primitive(kind):
        numbers = _numbers(column)
    else:
        text = column.cast(pa.binary())
        texts.append((tag, text))
        numbers = _numbers(pc.binary_length(text))
    added = _mix(numbers + tag)
    if column.null_count:
        added *= pc.is_valid(column).to_numpy(zero_copy_only=False)
    total += added


def _numbers(column: pa.Array) -> Words:
    """Return integers, floats, booleans and times as numbers; those of nulls mean nothing."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif pa.types.is_floating(kind):
        doubles = column.cast(pa.float64())
        column = pc.if_else(pc.is_nan(doubles), _NAN, doubles).view(pa.int64())
    whole = column if column.type == pa.int64() else column.cast(pa.int64())
    stored = np.frombuffer(whole.buffers()[1], np.uint64)
    words: Words = stored[whole.offset : whole.offset + len(whole)]
    return words


def _lists(column: pa.ListArray) -> Words:
    offsets = column.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if isinstance(column, pa.MapArray):
        columns = {"key": column.keys, "value": column.items}
    else:
        columns = {"item": column.values}
    parts = {name: column.slice(first, last - first) for name, column in columns.items()}
    sizes: Words = np.diff(offsets).astype(np.uint64)
    return sizes + _polynomials(_hashes(parts, last - first), offsets[1:] - first)


def _joined(texts: list[pa.Array], count: int) -> Words:
    """Return the polynomials of the bytes of several columns, by row."""
    sizes = np.zeros(count, np.int64)
    for column in texts:
        lengths = pc.binary_length(column)
        sizes += (pc.fill_null(lengths, 0) if column.null_count else lengths).to_numpy()
    pads = _PADS.take(pa.array(-sizes & 7))
    joined: Any = pc.binary_join_element_wise(
        *texts, pads, b"", null_handling="replace", null_replacement=b""
    )
    ends = np.cumsum((sizes + 7) >> 3)
    data = joined.buffers()[2] or b""
    return _polynomials(np.frombuffer(data, "<u8", int(ends[-1])), ends)


def _polynomials(words: Words, ends: NDArray[np.int64]) -> Words:
    """Return the polynomials of consecutive groups of words, whose ends these are."""
    powers, of_blocks = _powers(_BASE), _powers(pow(_BASE, _BLOCK, _MODULUS))
    sums = np.zeros(len(words) + 1, np.uint64)
    for block, start in enumerate(range(0, len(words), _BLOCK)):
        part = words[start : start + _BLOCK]
        here = sums[start + 1 : start + 1 + len(part)]
        np.multiply(part, _MIX[0], out=here)
        here ^= here >> _32
        here *= powers[: len(part)]
        here *= of_blocks[block]
        here[:1] += sums[start]
        np.cumsum(here, out=here)
    starts = np.concatenate([ends[:1] * 0, ends[:-1]])
    hashes: Words = sums[ends] - sums[starts]
    inverse = pow(_BASE, -1, _MODULUS)
    hashes *= _powers(inverse)[starts % _BLOCK]
    hashes *= _powers(pow(inverse, _BLOCK, _MODULUS))[starts // _BLOCK]
    return hashes


@cache
def _powers(base: int) -> Words:
    """Return the powers of a base, from 0 on."""
    powers = np.full(_BLOCK, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


@cache
def _tag(path: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little"))


def _mix(numbers: Words) -> Words:
    """Return numbers of which each bit depends on all bits."""
    mixed: Words = numbers ^ (numbers >> _33)
    mixed *= _MIX[0]
    mixed ^= mixed >> _33
    mixed *= _MIX[1]
    mixed ^= mixed >> _33
    return mixed
