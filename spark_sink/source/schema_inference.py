"""Infers a schema for typed documents from a sample of a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
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
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from spark_sink.errors import OptionError
from spark_sink.options.stream_options import parse_options
from spark_sink.stream.router_client import RouterClient

_SAMPLE = 1000
_DIGITS = 38
_SIMPLE: dict[type, DataType] = {
    str: StringType(),
    ObjectId: StringType(),
    int: LongType(),
    Int64: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    DatetimeMS: TimestampType(),
    bytes: BinaryType(),
    Binary: BinaryType(),
}


def infer_schema(*, sample: int = _SAMPLE, **options: str) -> StructType:
    """Return a schema for option `documentSchema`, as `infer_schema(…).json()`.

    Fields whose values have several types get the most common one; all whole numbers are BIGINT.
    Fields that only have types without a counterpart in Spark are left out.

    Args:
        sample: how many documents are read.
        options: of the source, for one collection.

    Raises OptionError without exactly one collection, or if it is empty; StreamError if the router
    cannot be reached.
    """
    parsed = parse_options(options)
    database, collections = parsed.scope.database, parsed.scope.collections
    if database is None or len(collections) != 1:
        raise OptionError("a schema is that of one collection: give 'database' and 'collection'")
    client = RouterClient(parsed)
    try:
        client.require_reachable()
        collection = client.plain()[database][collections[0]]
        schema = schema_of(collection.aggregate([{"$sample": {"size": sample}}]))
    finally:
        client.close()
    if not schema.fields:
        raise OptionError(f"{database}.{collections[0]} has no documents to infer a schema from")
    return schema


def schema_of(documents: Iterable[Mapping[str, Any]]) -> StructType:
    """Return the schema of documents, which are decoded with dates as DatetimeMS."""
    seen = _Seen()
    for document in documents:
        seen.add(document)
    found = seen.commonest()
    return found if isinstance(found, StructType) else StructType([])


@dataclass
class _Seen:
    """The values of one field: how many of each type, and digits before and after the point."""

    kinds: Counter[type] = field(default_factory=Counter)
    fields: dict[str, _Seen] = field(default_factory=dict)
    elements: _Seen | None = None
    digits: tuple[int, int] = (0, 0)

    def add(self, value: Any) -> None:
        if isinstance(value, DBRef):
            value = value.as_doc()
        if isinstance(value, Mapping):
            self.kinds[dict] += 1
            for name, item in value.items():
                self.fields.setdefault(name, _Seen()).add(item)
        elif isinstance(value, list):
            self.kinds[list] += 1
            self.elements = self.elements or _Seen()
            for item in value:
                self.elements.add(item)
        elif isinstance(value, Decimal128):
            self._add_decimal(value.to_decimal())
        elif type(value) in _SIMPLE:
            self.kinds[type(value)] += 1

    def _add_decimal(self, number: Decimal) -> None:
        if not number.is_finite():
            return
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        self.kinds[Decimal] += 1
        whole, part = self.digits
        self.digits = max(whole, len(digits) + exponent), max(part, -exponent)

    def commonest(self) -> DataType | None:
        """Return the type that holds most of the values; None if there is none."""
        totals: Counter[str] = Counter()
        types: dict[str, DataType] = {}
        for kind, count in self.kinds.items():
            found = self._type_of(kind)
            if found is not None:
                totals[found.typeName()] += count
                types[found.typeName()] = found
        if not types:
            return None
        if types.keys() == {"long", "double"}:
            return types["double"]
        if types.keys() == {"long", "decimal"}:
            return types["decimal"]
        return types[totals.most_common(1)[0][0]]

    def _type_of(self, kind: type) -> DataType | None:
        if kind is list:
            element = None if self.elements is None else self.elements.commonest()
            return ArrayType(element or StringType())
        if kind is Decimal:
            whole, part = self.digits
            return DecimalType(_DIGITS, part) if whole + part <= _DIGITS else None
        if kind is not dict:
            return _SIMPLE[kind]
        struct = StructType()
        for name, seen in self.fields.items():
            found = seen.commonest()
            if found is not None:
                struct.add(name, found)
        if not self.fields:  # Parquet has no structs without fields
            return MapType(StringType(), StringType())
        return struct if struct.fields else None
