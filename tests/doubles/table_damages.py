"""Damage to every column of a table."""

import random
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_sink.tables.places import KEY_RANGE


def other(value: Any) -> Any:
    """Another value of the same type; None if there is none at hand."""
    match value:
        case bool():
            return not value
        case int() | float() | Decimal():
            return type(value)(0 if value else 1)
        case str():
            return value + "x"
        case bytes():
            return value + b"x"
        case dict():
            return {name: other(each) for name, each in value.items()}
        case [(str() as name, content), *rest]:
            return [(f"{name}x", content), *rest]
        case [*_]:
            return value[1:] or None
        case None:
            return None
        case _:
            return value - timedelta(days=1)


def damages(rows: pa.Table, chance: random.Random) -> Iterator[tuple[str, pa.Table]]:
    """Tables in which one cell or one row differs, or two have changed places, by what was done."""
    for at, name in enumerate(rows.column_names):
        if name == KEY_RANGE:
            continue
        values = rows[name].to_pylist()
        filled = [row for row, value in enumerate(values) if value is not None]
        for row in chance.sample(filled, min(1, len(filled))):
            changed, nulled = [*values], [*values]
            changed[row], nulled[row] = other(values[row]), None
            for what, column in (("changed", changed), ("nulled", nulled)):
                if column == values:
                    continue
                array = pa.array(column, rows.schema.field(name).type)
                yield f"{name} {what}", rows.set_column(at, name, array)
        different = [row for row in filled if values[row] != values[filled[0]]]
        if different:
            swapped = [*values]
            swapped[filled[0]], swapped[different[0]] = values[different[0]], values[filled[0]]
            array = pa.array(swapped, rows.schema.field(name).type)
            yield f"{name} swapped", rows.set_column(at, name, array)
    for row in chance.sample(range(rows.num_rows), min(2, rows.num_rows)):
        others = [each for each in range(rows.num_rows) if each != row]
        yield "a row removed", rows.take(others)
        yield "a row doubled", rows.take([*range(rows.num_rows), row])
