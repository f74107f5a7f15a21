"""Checksums of rows: what counts, and what does not."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_sink.rows import checksum
from spark_sink.rows.checksum import Checksum

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ITEM = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [-1, 0, 2**62]),
    "int": (pa.int32(), [7, None, -(2**31)]),
    "bool": (pa.bool_(), [True, False, None]),
    "double": (pa.float64(), [0.1, -0.0, None]),
    "float": (pa.float32(), [0.5, None, 1.25]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.50"), None, Decimal("-3.00")]),
    "date": (pa.date32(), [date(2026, 1, 31), None, date(1960, 1, 1)]),
    "time": (pa.timestamp("us", "UTC"), [EPOCH, None, EPOCH - timedelta(days=1, microseconds=3)]),
    "text": (pa.string(), ["", None, "gr\u00fc\u00df " * 40]),
    "other": (pa.string(), ["a", "ab", "b" * 8]),
    "bytes": (pa.binary(), [b"\0" * 7, b"\0" * 8, None]),
    "list": (pa.list_(pa.int64()), [[], [1, None, 2], None]),
    "deep": (pa.list_(ITEM), [[{"x": 1, "y": ["p", None]}, None], None, []]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], None]),
    "struct": (ITEM, [{"x": None, "y": None}, None, {"x": 3, "y": []}]),
}


def rows() -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in COLUMNS.items()})


def test_the_checksum_is_that_of_all_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables keep checksums, which new versions of pyarrow and numpy must not change."""
    table, expected = rows(), Checksum(3, "e6a4e8305b341ac")
    assert Checksum.of(table) == expected
    for name in ("_BLOCK", "_SLICE_BYTES"):
        monkeypatch.setattr(checksum, name, 32)
        checksum._powers.cache_clear()
        assert Checksum.of(table) == expected
    checksum._powers.cache_clear()


def test_neither_order_nor_division_nor_the_form_of_arrays_counts(tmp_path: Path) -> None:
    table, chance = rows(), random.Random(1)
    table = pa.concat_tables([table] * 20)
    expected = Checksum.of(table)
    assert Checksum.of(table.take(chance.sample(range(60), 60))) == expected
    assert Checksum.of(table.select(sorted(COLUMNS, reverse=True))) == expected
    assert Checksum.of(table.slice(7)) + Checksum.of(table.slice(0, 7)) == expected
    assert expected - Checksum.of(table.slice(7)) == Checksum.of(table.slice(0, 7))
    nothing = pa.nulls(60, pa.struct([("a", pa.string())]))
    assert Checksum.of(table.append_column("added", nothing)) == expected
    assert Checksum.of(table.slice(0, 0)) == Checksum()
    pq.write_table(table, tmp_path / "rows", row_group_size=9)
    assert Checksum.of(pq.read_table(tmp_path / "rows")) == expected
    wide = {"int": pa.int64(), "float": pa.float64(), "text": pa.large_string()}
    wide |= {"other": pa.dictionary(pa.int32(), pa.string()), "bytes": pa.large_binary()}
    wide |= {"list": pa.large_list(pa.int64())}
    for name, kind in wide.items():
        at = table.schema.get_field_index(name)
        changed = table.set_column(at, name, table[name].cast(kind))
        assert Checksum.of(changed) == expected, name
    views = table.set_column(8, "text", table["text"].cast(pa.string_view()))
    assert Checksum.of(views) == expected
    # Spark, which may compact the table, writes each NaN with the bits of the first one.
    nans = [np.array([bits], np.uint64).view(float) for bits in (0x7FF8 << 48, 0xFFF8 << 48 | 1)]
    assert len({Checksum.of(pa.table({"float": each})) for each in nans}) == 1


@pytest.mark.parametrize("name", COLUMNS)
def test_each_change_of_a_value_counts(name: str) -> None:
    kind, values = COLUMNS[name]
    table = rows()
    found = {Checksum.of(table).hashes}
    others = [each for each in values if each is not None]
    for row in range(3):
        for value in (None, *others):
            changed = [*values]
            changed[row] = value
            if changed != values:
                at = table.schema.get_field_index(name)
                found.add(Checksum.of(table.set_column(at, name, pa.array(changed, kind))).hashes)
    swapped = [values[1], values[0], values[2]]
    at = table.schema.get_field_index(name)
    found.add(Checksum.of(table.set_column(at, name, pa.array(swapped, kind))).hashes)
    assert len(found) == 1 + 3 * len([None, *others]) - 3 + 1


def test_bytes_belong_to_their_columns() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("abc", None), (None, "abc"), ("", "abc")]
    pairs += [("abc\0", ""), ("c", "ab")]
    found = [Checksum.of(pa.table({"a": [a], "b": pa.array([b], pa.string())})) for a, b in pairs]
    assert len({each.hashes for each in found}) == len(pairs)


@pytest.mark.parametrize("size", [2**12, 2**18, 2**20, 2**22])
def test_long_runs_of_a_pattern_do_not_change_places_unseen(size: int) -> None:
    """The powers of the base at the beginnings of two such runs are nearly equal."""
    runs = [pattern * (size // len(pattern)) for pattern in (b"abcd", b"wxyz", b"\0\0\0\1")]
    orders = [(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0)]
    values = [b"".join(runs[each] for each in order) for order in orders]
    assert len({Checksum.of(pa.table({"a": [each]})).hashes for each in values}) == len(orders)
