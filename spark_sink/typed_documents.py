"""Documents as structs of a given schema, without a silent null.

A value fits a field if the field's type holds it without loss. Whatever does not fit is null in the
struct, and the caller learns that the document does not fit as a whole, so that it can keep it.
A missing field is null as well, and fits.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import bson
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_sink.event_slices import DOCUMENT, NULL, Slice, decoded_documents
from spark_sink.extended_json import ToJson

TYPED_COLUMNS = ("fullDocument", "fullDocumentBeforeChange")
"""The columns that hold structs where documents are typed; the other documents are JSON then."""
RESCUED = "_rescued"
"""The column of the documents that do not fit."""

_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NAMES = (
    "STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, DOUBLE, DECIMAL, TIMESTAMP, TIMESTAMP_NTZ, "
    "DATE, BINARY, ARRAY, MAP with STRING keys, and STRUCT"
)
# Values of these types fit as they are.
_KEPT: dict[type[DataType], tuple[type, ...]] = {
    StringType: (str,), LongType: (int, Int64), DoubleType: (float,), BooleanType: (bool,),
    BinaryType: (bytes,),
}  # fmt: skip
# Integers up to here have a double each.
_EXACT = 1 << 53
# Spark's years 1 to 9999, in milliseconds since 1970.
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
_DAY = 86_400_000

_Convert = Callable[[Any], Any]


class TypedDocuments:
    """Makes structs of documents, for one thread.

    schema: of the documents; rescues_unknown: whether a field that the schema lacks does not fit.
    Raises ValueError if the schema has a type that this cannot make.
    """

    def __init__(self, schema: StructType, *, rescues_unknown: bool = True) -> None:
        self.schema = schema
        self._rescues_unknown = rescues_unknown
        self._fits = True
        self._convert = self._struct(schema)

    def read(self, field: Slice | None) -> tuple[dict[str, Any] | None, bool]:
        """The struct of a document, as pyarrow takes it, and whether all of the document fits."""
        if field is None or field.kind == NULL:
            return None, True
        if field.kind != DOCUMENT:
            return None, False
        self._fits = True
        found = self._convert(bson.decode(field.value, _CODEC))
        return found, self._fits

    def read_all(self, documents: Sequence[bytes]) -> tuple[list[dict[str, Any]], list[int]]:
        """The structs of documents, and the indexes of those that do not fit as a whole."""
        structs, misfits = [], []
        for index, document in enumerate(decoded_documents(documents, _CODEC)):
            self._fits = True
            structs.append(self._convert(document))
            if not self._fits:
                misfits.append(index)
        return structs, misfits

    def columns(
        self, get: Callable[[bytes], Slice | None], to_json: ToJson
    ) -> tuple[list[dict[str, Any] | None], str | None]:
        """The values of TYPED_COLUMNS of an event, and that of RESCUED. get: the event's fields."""
        structs, misfits = [], []
        for name in TYPED_COLUMNS:
            field = get(name.encode())
            struct, fits = self.read(field)
            structs.append(struct)
            if not fits:
                misfits.append((name, to_json(field)))
        return structs, rescued(misfits)

    def _misfit(self) -> Any:
        """Note that the document does not fit, and return what the struct has instead: a null."""
        self._fits = False
        return None

    def _converter(self, kind: DataType) -> _Convert:
        match kind:
            case StructType():
                return self._struct(kind)
            case ArrayType():
                return self._array(self._converter(kind.elementType))
            case MapType() if type(kind.keyType) is StringType:
                return self._map(self._converter(kind.valueType))
            case DecimalType():
                return self._decimal(kind.precision, kind.scale)
            case TimestampType() | TimestampNTZType():
                return self._microseconds
            case DateType():
                return self._days
            case DoubleType():
                return self._double
            case BooleanType():
                return self._boolean
            case BinaryType():
                return self._bytes
        if type(kind) is StringType:
            return self._text
        if type(kind) in _BITS:
            return self._integer(_BITS[type(kind)])
        raise ValueError(
            f"documents cannot be read as {kind.simpleString()}; these types can be used: {_NAMES}"
        )

    def _struct(self, kind: StructType) -> _Convert:
        converters = {field.name: self._converter(field.dataType) for field in kind.fields}
        kept = {field.name: _KEPT.get(type(field.dataType), ()) for field in kind.fields}
        kept_of = kept.get

        def convert(value: Any) -> Any:
            if isinstance(value, DBRef):
                value = value.as_doc()
            if not isinstance(value, dict):
                return self._misfit()
            found = {}
            for name, item in value.items():
                if type(item) in kept_of(name, ()):
                    found[name] = item
                elif item is None:
                    continue
                elif name in converters:
                    found[name] = converters[name](item)
                elif self._rescues_unknown:
                    self._fits = False
            return found

        return convert

    def _array(self, of_element: _Convert) -> _Convert:
        def convert(value: Any) -> Any:
            if type(value) is not list:
                return self._misfit()
            return [None if each is None else of_element(each) for each in value]

        return convert

    def _map(self, of_value: _Convert) -> _Convert:
        def convert(value: Any) -> Any:
            if isinstance(value, DBRef):
                value = value.as_doc()
            if not isinstance(value, dict):
                return self._misfit()
            return [
                (name, None if item is None else of_value(item)) for name, item in value.items()
            ]

        return convert

    def _integer(self, bits: int) -> _Convert:
        least, most = -(1 << bits - 1), (1 << bits - 1) - 1

        def convert(value: Any) -> Any:
            kind = type(value)
            if kind is float and value.is_integer():
                value = int(value)
            elif kind is not int and kind is not Int64:
                return self._misfit()
            return int(value) if least <= value <= most else self._misfit()

        return convert

    def _decimal(self, precision: int, scale: int) -> _Convert:
        step = Decimal(1).scaleb(-scale)
        exact = decimal.Context(
            prec=precision, traps=[decimal.InvalidOperation, decimal.Inexact], Emax=10_000
        )

        def convert(value: Any) -> Any:
            if type(value) is Decimal128:
                number = value.to_decimal()
            elif type(value) is int or type(value) is Int64:
                number = Decimal(value)
            else:
                return self._misfit()
            if not number.is_finite():
                return self._misfit()
            try:
                return number.quantize(step, context=exact)
            except decimal.DecimalException:
                return self._misfit()

        return convert

    def _text(self, value: Any) -> str | None:
        if type(value) is str:
            return value
        return str(value) if type(value) is ObjectId else self._misfit()

    def _double(self, value: Any) -> float | None:
        kind = type(value)
        if kind is float:
            return float(value)
        exact = (kind is int or kind is Int64) and -_EXACT <= value <= _EXACT
        return float(value) if exact else self._misfit()

    def _boolean(self, value: Any) -> bool | None:
        return value if type(value) is bool else self._misfit()

    def _bytes(self, value: Any) -> bytes | None:
        return bytes(value) if type(value) is bytes or type(value) is Binary else self._misfit()

    def _microseconds(self, value: Any) -> int | None:
        fits = type(value) is DatetimeMS and _FIRST <= int(value) <= _LAST
        return int(value) * 1000 if fits else self._misfit()

    def _days(self, value: Any) -> int | None:
        fits = type(value) is DatetimeMS and _FIRST <= int(value) <= _LAST
        days, rest = divmod(int(value), _DAY) if fits else (0, 1)
        return self._misfit() if rest else days


def rescued(misfits: Sequence[tuple[str, str | None]]) -> str | None:
    """The value of RESCUED. misfits: the columns that do not fit, each with its field as JSON."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in misfits) + "}" if misfits else None


_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)


def document_schema(text: str) -> str:
    """A schema of documents as an option: Spark's DDL or its JSON. Raises ValueError."""
    if not text.strip():
        raise ValueError("must not be empty")
    if is_json(text):
        TypedDocuments(from_json(text))
    elif _NOT_NULL.search(text):
        raise ValueError("every field may be missing in a document: leave NOT NULL out")
    return text


def is_json(text: str) -> bool:
    """Whether a schema is given as JSON."""
    return text.lstrip().startswith("{")


def from_json(text: str) -> StructType:
    """A schema given as JSON, such as `df.schema.json()`; all its fields are made nullable.

    Raises ValueError.
    """
    try:
        found = StructType.fromJson(json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is no schema of Spark as JSON: {error}") from None
    return nullable(found)


def nullable(kind: StructType) -> StructType:
    """The schema with all its fields nullable."""
    found = _nullable(kind)
    assert isinstance(found, StructType)
    return found


def _nullable(kind: DataType) -> DataType:
    match kind:
        case StructType():
            fields = [StructField(each.name, _nullable(each.dataType)) for each in kind.fields]
            return StructType(fields)
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def ddl_of(kind: DataType) -> str:
    """A type in Spark's DDL, with all names quoted."""
    if isinstance(kind, StructType):
        fields = (f"`{each.name}`: {ddl_of(each.dataType)}" for each in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    return kind.simpleString()
