"""Documents as structs of a given schema, without loss.

A value fits a field if the field's type holds it without loss. A value that does not fit is null in
the struct, and the caller learns that the document does not fit, so that it can keep it. A missing
field is null as well, and fits.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
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
        self._convert = self._struct(schema)

    def read_all(self, documents: Sequence[bytes]) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the structs of documents, and the indexes of those that do not fit."""
        structs, misfits = [], []
        for index, document in enumerate(decoded_documents(documents, CODEC)):
            self._fits = True
            structs.append(self._convert(document))
            if not self._fits:
                misfits.append(index)
        return structs, misfits

    def misfits(self, document: bytes, others: Mapping[bytes, Slice] = _NONE) -> str | None:
        """Return the top-level fields of a document that do not fit, as JSON; None for none.

        `others` are further fields that do not.
        """
        found = {}
        for name, field in fields_of(document).items():
            single = document_of([(name, field)])
            if self.read_all([single])[1]:
                found[name] = field
        found |= others
        return _json_of(Slice(DOCUMENT, document_of(found.items()))) if found else None

    def _misfit(self) -> Any:
        """Record that the document does not fit, and return a null for the struct."""
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
                elif self._rescues_unknown and item not in self._without_type:
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


class InferredDocuments(TypedDocuments):
    """Makes structs of documents, of a schema that was inferred from such documents.

    A value fits the type that is inferred from it, and wider ones. A STRING accepts every value
    that has such a type, as its text: other values than strings and ObjectIds as relaxed extended
    JSON, dates and decimals without its wrapping. A DECIMAL accepts a double, with the fewest
    digits that are the same double. An empty array or document fits where the schema has no field
    for it.
    """

    _without_type = ([], {})

    def _integer(self, bits: int) -> _Convert:
        kinds = (int,) if bits <= _BITS[IntegerType] else (int, Int64)
        convert = super()._integer(bits)
        return lambda value: convert(value) if type(value) in kinds else self._misfit()

    def _decimal(self, precision: int, scale: int) -> _Convert:
        convert = super()._decimal(precision, scale)
        return lambda value: convert(Decimal128(repr(value)) if type(value) is float else value)

    def _text(self, value: Any) -> str | None:
        if type(value) is str or type(value) is ObjectId:
            return str(value)
        if type(value) is Decimal128:
            return str(value)
        if type(value) not in SIMPLE_TYPES:
            seen = SeenTypes()
            seen.add(value)
            if seen.type() is None:  # as before the field became a column
                self._fits &= value in self._without_type
                return None
        text = _json_of(fields_of(bson.encode({"v": value}))[b"v"])
        if type(value) is DatetimeMS:
            text = text.removeprefix('{"$date":"').removesuffix('"}')
        return text


def rescued(misfits: Sequence[tuple[str, str]]) -> str | None:
    """Return the value of RESCUED, from the columns that do not fit, with their JSON."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in misfits) + "}" if misfits else None


_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)


def document_schema(text: str) -> str:
    """Return a schema of documents as an option: Spark's DDL or its JSON. Raises ValueError."""
    if not text.strip():
        raise ValueError("must not be empty")
    if is_json(text):
        TypedDocuments(from_json(text))
    elif _NOT_NULL.search(_QUOTED.sub("", text)):
        raise ValueError("every field may be missing in a document: remove NOT NULL")
    else:
        require_types(text)
    return text


# Comments and quoted names, in which any character may be; a field with its type, in DDL.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`[^`]*`")
_FIELD = re.compile(r"\s*(\w+)\s*(?::|\s)\s*(\w+)")
_TYPES = re.compile(
    "ARRAY|BIGINT|BINARY|BOOLEAN|BYTE|CHAR|CHARACTER|DATE|DEC|DECIMAL|DOUBLE|FLOAT|INT|INTEGER|"
    "INTERVAL|LONG|MAP|NUMERIC|REAL|SHORT|SMALLINT|STRING|STRUCT|TIME|TIMESTAMP|TIMESTAMP_LTZ|"
    "TIMESTAMP_NTZ|TINYINT|VARCHAR|VARIANT|VOID",
    re.IGNORECASE,
)


def require_types(ddl: str) -> None:
    """Raise ValueError for a field without a type of Spark.

    Spark's own error quotes the schema of whole rows, which the user has not written.
    """
    plain = _QUOTED.sub("quoted", ddl)
    while (inner := re.sub(r"<[^<>]*>|\([^()]*\)", "", plain)) != plain:
        plain = inner
    if alone := re.search(r"[<>()]", plain):
        raise ValueError(f"a {alone[0]!r} has no counterpart in {ddl.strip()!r}")
    for part in plain.split(","):
        field = _FIELD.match(part)
        if field is None:
            raise ValueError(f"{part.strip()!r} is not a name and a type, such as: n BIGINT")
        if not _TYPES.fullmatch(field[2]):
            raise ValueError(f"{field[2]!r}, the type of {field[1]!r}, is no type of Spark")


def is_json(text: str) -> bool:
    """Return whether a schema is given as JSON."""
    return text.lstrip().startswith("{")


def from_json(text: str) -> StructType:
    """Return a schema given as JSON, such as `df.schema.json()`, with all fields nullable.

    Raises ValueError.
    """
    try:
        found = StructType.fromJson(json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a schema of Spark as JSON: {error}") from None
    return nullable(found)


_NULLABLE = re.compile(r'("(?:nullable|containsNull|valueContainsNull)"): ?false')


def nullable(kind: StructType) -> StructType:
    """Return the schema with all its fields nullable."""
    return StructType.fromJson(json.loads(_NULLABLE.sub(r"\1:true", kind.json())))


def ddl_of(kind: DataType) -> str:
    """Return a type in Spark's DDL, with all names quoted."""
    if isinstance(kind, StructType):
        fields = (f"`{each.name}`: {ddl_of(each.dataType)}" for each in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    return kind.simpleString()


def _json_of(field: Slice) -> str:
    from spark_sink.rows.extended_json import relaxed_json  # with pyarrow, which options do without

    return relaxed_json(field)
