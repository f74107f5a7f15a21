"""Infers a schema for typed documents from a sample of a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bson.decimal128 import Decimal128
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_sink.errors import OptionError
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.inferred_schema import SIMPLE_TYPES, SeenTypes, schema_seen
from spark_sink.stream.router_client import RouterClient

_SAMPLE = 1000
_DIGITS = 38


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
    with closing(RouterClient(parsed)) as client:
        client.require_reachable()
        collection = client.mongo[database][collections[0]]
        schema = schema_of(collection.aggregate([{"$sample": {"size": sample}}]))
    if not schema.fields:
        raise OptionError(f"{database}.{collections[0]} has no documents to infer a schema from")
    return schema


def schema_of(documents: Iterable[Mapping[str, Any]]) -> StructType:
    """Return the schema of documents, which are decoded with dates as DatetimeMS."""
    return schema_seen(_Seen(), documents)


@dataclass
class _Seen(SeenTypes):
    """The same, with the digits of decimals before and after the point."""

    digits: tuple[int, int] = (0, 0)

    def add(self, value: Any) -> None:
        """Add a value; an infinity or a NaN has no type."""
        if isinstance(value, Decimal128):
            number = value.to_decimal()
            if not number.is_finite():
                return
            _, digits, exponent = number.as_tuple()
            assert isinstance(exponent, int)
            whole, part = self.digits
            self.digits = max(whole, len(digits) + exponent), max(part, -exponent)
        super().add(value)

    @staticmethod
    def accepts(name: str) -> bool:
        """Return True: fields of structs may have any name."""
        return True

    def type(self) -> DataType | None:
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

    def _type_of(self, kind: Any) -> DataType | None:
        if kind is list:
            element = None if self.elements is None else self.elements.type()
            return ArrayType(element or StringType())
        if kind is Decimal128:
            whole, part = self.digits
            return DecimalType(_DIGITS, part) if whole + part <= _DIGITS else None
        if kind is not dict:
            return LongType() if kind is int else SIMPLE_TYPES[kind]
        if not self.fields:  # Parquet has no structs without fields
            return MapType(StringType(), StringType())
        kinds = {name: seen.type() for name, seen in self.fields.items()}
        fields = [StructField(name, found) for name, found in kinds.items() if found is not None]
        return StructType(fields) if fields else None
