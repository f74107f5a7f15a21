"""The schema that documents need, and how it grows with more of them.

The rule, which docs/spark-reference.md#typed-tables states for users: numbers widen from INT to
BIGINT, DOUBLE and DECIMAL(38,18); structs have the fields of both, arrays the wider elements; two
other types that differ become STRING, as their texts. A null, an empty array and an empty document
have no type. So the schema of documents is the same in whatever order they come.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

MOST_FIELDS = 1_000
"""The most fields of a schema that grows, those of structs included."""
MOST_DEPTH = 32
"""The most types within each other in such a schema: delta-rs cannot read 43 structs."""
SIMPLE_TYPES: dict[type, DataType] = {
    int: IntegerType(),
    Int64: LongType(),
    float: DoubleType(),
    Decimal128: DecimalType(38, 18),
    str: StringType(),
    ObjectId: StringType(),
    bool: BooleanType(),
    DatetimeMS: TimestampType(),
    bytes: BinaryType(),
    Binary: BinaryType(),
}
_NUMBERS: tuple[DataType, ...] = tuple(
    SIMPLE_TYPES[kind] for kind in (int, Int64, float, Decimal128)
)
# What names of columns cannot contain in Spark's Parquet files, and a dot, which separates names.
_NO_COLUMN = re.compile(r"[ ,;{}()\n\t=.]|^$")


@dataclass
class SeenTypes:
    """The values of one field in many documents: their types, and what they contain."""

    kinds: set[type] = field(default_factory=set)
    fields: dict[str, SeenTypes] = field(default_factory=dict)
    elements: SeenTypes | None = None

    def add(self, value: Any) -> None:
        """Add a value, which is decoded with dates as DatetimeMS."""
        kind = type(value)
        if kind in SIMPLE_TYPES:
            self.kinds.add(kind)
        elif kind is list:
            self.elements = self.elements or SeenTypes()
            for item in value:
                self.elements.add(item)
        elif isinstance(value, Mapping):
            for name, item in value.items():
                if item is not None and not is_no_column(name):
                    self.fields.setdefault(name, SeenTypes()).add(item)
        elif isinstance(value, DBRef):
            self.add(value.as_doc())

    def type(self) -> DataType | None:
        """Return the type that holds the values; None if they have none."""
        types: list[DataType | None] = [SIMPLE_TYPES[kind] for kind in self.kinds]
        if self.elements is not None:
            element = self.elements.type()
            types.append(None if element is None else ArrayType(element))
        fields = [(name, seen.type()) for name, seen in self.fields.items()]
        typed = [StructField(name, kind) for name, kind in fields if kind is not None]
        types.append(StructType(typed) if typed else None)
        return reduce(_wider, types, None)


def is_no_column(name: str) -> bool:
    """Return whether a field cannot be a column, because of its name."""
    return _NO_COLUMN.search(name) is not None


def paths_of(kind: DataType, within: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the paths of all fields of a type, nested ones included, as lists of names."""
    if isinstance(kind, ArrayType):
        yield from paths_of(kind.elementType, within)
    for member in kind.fields if isinstance(kind, StructType) else ():
        yield (*within, member.name)
        yield from paths_of(member.dataType, (*within, member.name))


def schema_of(documents: Iterable[Mapping[str, Any]]) -> StructType:
    """Return the schema of documents, which are decoded with dates as DatetimeMS."""
    seen = SeenTypes()
    for document in documents:
        seen.add(document)
    kind = seen.type()
    return kind if isinstance(kind, StructType) else StructType([])


def merged(left: StructType, right: StructType) -> StructType:
    """Return the schema of documents of both schemas: fields of `right` follow those of `left`."""
    kinds: dict[str, DataType | None] = {member.name: member.dataType for member in left.fields}
    for member in right.fields:
        kinds[member.name] = _wider(kinds.get(member.name), member.dataType)
    return StructType([StructField(name, kind) for name, kind in kinds.items() if kind is not None])


def grown(schema: StructType, wanted: StructType, reserved: Collection[str] = ()) -> StructType:
    """Return the schema of a table, merged with the schema that documents want.

    A new field is left out whose name is `reserved` or equals another one but for its case, and
    one after MOST_FIELDS or below MOST_DEPTH.
    """
    room = [MOST_FIELDS - sum(1 for _ in paths_of(schema))]
    allowed = _allowed(schema, merged(schema, wanted), {name.lower() for name in reserved}, room)
    assert isinstance(allowed, StructType)
    return allowed


def extends(wide: DataType, narrow: DataType) -> bool:
    """Return whether a type differs from another one by further fields of its structs only."""
    if isinstance(wide, ArrayType) and isinstance(narrow, ArrayType):
        return extends(wide.elementType, narrow.elementType)
    if not isinstance(wide, StructType) or not isinstance(narrow, StructType):
        return wide == narrow
    kinds = {member.name: member.dataType for member in wide.fields}
    return all(
        member.name in kinds and extends(kinds[member.name], member.dataType)
        for member in narrow.fields
    )


def _wider(left: DataType | None, right: DataType | None) -> DataType | None:
    if left is None or right is None or left == right:
        return right if left is None else left
    if left in _NUMBERS and right in _NUMBERS:
        return max(left, right, key=_NUMBERS.index)
    if isinstance(left, StructType) and isinstance(right, StructType):
        return merged(left, right)
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        element = _wider(left.elementType, right.elementType)
        return ArrayType(element or StringType())
    return StringType()


def _allowed(
    before: DataType | None,
    kind: DataType,
    reserved: Collection[str],
    room: list[int],
    depth: int = MOST_DEPTH,
) -> DataType | None:
    """Return a type without new fields that are not allowed.

    `room` is the number of further fields that are allowed, `depth` that of further levels.
    """
    if not depth:
        return before
    if isinstance(kind, ArrayType):
        element = before.elementType if isinstance(before, ArrayType) else None
        allowed = _allowed(element, kind.elementType, (), room, depth - 1)
        return None if allowed is None else ArrayType(allowed)
    if not isinstance(kind, StructType):
        return kind
    known = {member.name: member.dataType for member in getattr(before, "fields", ())}
    taken = {*reserved, *(name.lower() for name in known)}
    fields = []
    for member in kind.fields:
        if member.name not in known:
            if member.name.lower() in taken or room[0] <= 0:
                continue
            room[0] -= 1
            taken.add(member.name.lower())
        allowed = _allowed(known.get(member.name), member.dataType, (), room, depth - 1)
        if allowed is not None:
            fields.append(StructField(member.name, allowed))
    return StructType(fields) if fields or before is not None else None
