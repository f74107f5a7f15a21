"""Documents as structs of a given schema, without loss.

A value fits a field if the field's type holds it without loss. A value that does not fit is null in
the struct, and the caller learns that the document does not fit, so that it can keep it. A missing
field is null as well, and fits.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import bson
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
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from shard_client.bson.values import DOCUMENT
from spark_sink.events.slices import CODEC, Slice, decoded_documents, document_of, fields_of
from spark_sink.rows.inferred_schema import SIMPLE_TYPES, SeenTypes

TYPED_COLUMNS = ("fullDocument", "fullDocumentBeforeChange")
"""The columns that hold structs where documents are typed; the other documents are JSON then."""
RESCUED = "_rescued"
"""The column of the documents that do not fit."""

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NAMES = (
    "STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, DOUBLE, DECIMAL, TIMESTAMP, TIMESTAMP_NTZ, "
    "DATE, BINARY, ARRAY, MAP with STRING keys, and STRUCT"
)
# Integers up to here have a double each.
_EXACT = 1 << 53
# Spark's years 1 to 9999, in milliseconds since 1970.
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
_DAY = 86_400_000

_Convert = Callable[[Any], Any]
"""Returns a column's value; raises ValueError or ArithmeticError if the column cannot have it."""
_MISFITS = (LookupError, ValueError, ArithmeticError)
_Converters = dict[type, _Convert]
"""What converts the values of a column, by their types; values of other types do not fit."""
_NONE: Mapping[bytes, Slice] = {}


class TypedDocuments:
    """Makes structs of documents, for one thread.

    With `rescues_unknown` a document with a field outside of the schema does not fit. Raises
    ValueError if the schema has an unsupported type.
    """

    _without_type: Sequence[Any] = ()
    """Values that a document may have in fields outside of the schema."""

    def __init__(self, schema: StructType, *, rescues_unknown: bool = True) -> None:
        self.schema = schema
        self._rescues_unknown = rescues_unknown
        self._fits = True
        self._struct = self._converters(schema)[dict]

    def read_all(self, documents: Sequence[bytes]) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the structs of documents, and the indexes of those that do not fit."""
        structs, misfits = [], []
        for index, document in enumerate(decoded_documents(documents, CODEC)):
            self._fits = True
            structs.append(self._struct(document))
            if not self._fits:
                misfits.append(index)
        return structs, misfits

    def misfits(self, document: bytes, others: Mapping[bytes, Slice] = _NONE) -> str | None:
        """Return the top-level fields of a document that do not fit, as JSON; None for none.

        `others` are further fields that do not.
        """
        misfits = {}
        for name, field in fields_of(document).items():
            single = document_of([(name, field)])
            if self.read_all([single])[1]:
                misfits[name] = field
        misfits |= others
        return _json_of(Slice(DOCUMENT, document_of(misfits.items()))) if misfits else None

    def _converters(self, kind: DataType) -> _Converters:
        match kind:
            case StructType():
                return _of_documents(self._of_struct(kind))
            case ArrayType():
                of_element = self._converters(kind.elementType)
                return {
                    list: lambda value: [self._fitted(of_element, element) for element in value]
                }
            case MapType() if type(kind.keyType) is StringType:
                of_value = self._converters(kind.valueType)
                return _of_documents(
                    lambda value: [(name, self._fitted(of_value, e)) for name, e in value.items()]
                )
            case DecimalType():
                return self._of_decimal(_decimal(kind.precision, kind.scale))
            case TimestampType() | TimestampNTZType():
                return {DatetimeMS: lambda value: _spark_time(value) * 1000}
            case DateType():
                return {DatetimeMS: lambda value: _quotient(_spark_time(value), _DAY)}
            case DoubleType():
                return {float: float, **dict.fromkeys((int, Int64), _double)}
            case BooleanType():
                return {bool: bool}
            case BinaryType():
                return dict.fromkeys((bytes, Binary), bytes)
        if type(kind) is StringType:
            return self._of_text
        if type(kind) in _BITS:
            return self._of_integer(_BITS[type(kind)])
        raise ValueError(
            f"documents cannot be read as {kind.simpleString()}; these types can be used: {_NAMES}"
        )

    def _fitted(self, converters: _Converters, value: Any) -> Any:
        """Return the value of a column; record if the document's value does not fit."""
        if value is None:
            return None
        try:
            return converters[type(value)](value)
        except _MISFITS:
            self._fits = False
            return None

    def _of_struct(self, kind: StructType) -> _Convert:
        known = {field.name: self._converters(field.dataType) for field in kind.fields}

        def convert(document: Mapping[str, Any]) -> dict[str, Any]:
            converted = {}
            for name, item in document.items():
                if item is None:
                    continue
                if name in known:
                    try:  # as `_fitted`, at less cost
                        converted[name] = known[name][type(item)](item)
                    except _MISFITS:
                        self._fits = False
                elif self._rescues_unknown and item not in self._without_type:
                    self._fits = False
            return converted

        return convert

    @property
    def _of_text(self) -> _Converters:
        return {str: str, ObjectId: str}

    def _of_integer(self, bits: int) -> _Converters:
        return dict.fromkeys((int, Int64, float), partial(_integer, bits))

    def _of_decimal(self, convert: _Convert) -> _Converters:
        converters: _Converters = dict.fromkeys((int, Int64), lambda value: convert(Decimal(value)))
        return {**converters, Decimal128: lambda value: convert(value.to_decimal())}


class InferredDocuments(TypedDocuments):
    """Makes structs of documents, of a schema that was inferred from such documents.

    A value fits the type that is inferred from it, and wider ones. A STRING accepts every value
    that has such a type, as its text: other values than strings and ObjectIds as relaxed extended
    JSON, dates and decimals without its wrapping. A DECIMAL accepts a double, with the fewest
    digits that are the same double. An empty array or document fits where the schema has no field
    for it.
    """

    _without_type = ([], {})

    @property
    def _of_text(self) -> _Converters:
        texts = dict.fromkeys((str, ObjectId, Decimal128), str)
        nested = dict.fromkeys((list, dict, DBRef), self._nested_text)
        return {**dict.fromkeys(SIMPLE_TYPES, _text), **texts, **nested}

    def _nested_text(self, value: Any) -> str | None:
        seen = SeenTypes()
        seen.add(value)
        if seen.type() is not None:
            return _text(value)
        if value in self._without_type:  # as before the field became a column
            return None
        raise ValueError("a value without a type")

    def _of_integer(self, bits: int) -> _Converters:
        kinds = (int,) if bits <= _BITS[IntegerType] else (int, Int64)
        return dict.fromkeys(kinds, partial(_integer, bits))

    def _of_decimal(self, convert: _Convert) -> _Converters:
        from_double = {float: lambda value: convert(Decimal(repr(value)))}
        return super()._of_decimal(convert) | from_double


def _of_documents(convert: _Convert) -> _Converters:
    return {dict: convert, DBRef: lambda value: convert(value.as_doc())}


def _integer(bits: int, value: float) -> int:
    number, most = int(value), (1 << bits - 1) - 1
    if number != value or not -most - 1 <= number <= most:
        raise ValueError("a number with a fraction, or of another size")
    return number


def _double(value: int) -> float:
    if not -_EXACT <= value <= _EXACT:
        raise ValueError("an integer without a double of its own")
    return float(value)


def _decimal(precision: int, scale: int) -> Callable[[Decimal], Decimal]:
    step = Decimal(1).scaleb(-scale)
    exact = decimal.Context(
        prec=precision, traps=[decimal.InvalidOperation, decimal.Inexact], Emax=10_000
    )

    def convert(number: Decimal) -> Decimal:
        if not number.is_finite():
            raise ValueError("no number")
        return number.quantize(step, context=exact)

    return convert


def _spark_time(value: DatetimeMS) -> int:
    """Return milliseconds since 1970, in Spark's years."""
    if not _FIRST <= int(value) <= _LAST:
        raise ValueError("a year that Spark does not have")
    return int(value)


def _quotient(number: int, divisor: int) -> int:
    quotient, rest = divmod(number, divisor)
    if rest:
        raise ValueError("not a multiple")
    return quotient


def _text(value: Any) -> str:
    text = _json_of(fields_of(bson.encode({"v": value}))[b"v"])
    if type(value) is DatetimeMS:
        text = text.removeprefix('{"$date":"').removesuffix('"}')
    return text


def rescued(misfits: Sequence[tuple[str, str]]) -> str | None:
    """Return the value of RESCUED, from the columns that do not fit, with their JSON."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in misfits) + "}" if misfits else None


def _json_of(field: Slice) -> str:
    from spark_sink.rows.extended_json import relaxed_json  # with pyarrow, which options do without

    return relaxed_json(field)
