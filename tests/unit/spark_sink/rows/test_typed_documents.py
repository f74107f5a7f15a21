"""Documents as structs: which values fit which types, and that nothing becomes null in silence."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import bson
import pyarrow as pa
import pytest
from bson.binary import Binary, UuidRepresentation
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
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

from spark_sink.rows.typed_documents import TypedDocuments, ddl_of, document_schema, from_json
from tests.doubles.event_history import event_token
from tests.unit.spark_sink.documents import documents

ID = ObjectId("0123456789abcdef01234567")
NOON = datetime(2024, 2, 29, 12, 0, 0, 5000, tzinfo=UTC)
POINT = StructType([StructField("x", LongType()), StructField("y", LongType())])
UUID_7 = Binary.from_uuid(UUID(int=7), UuidRepresentation.STANDARD)


def read(kind: DataType, value: Any, **options: Any) -> tuple[Any, bool]:
    """The value of a field `v` of this type, by way of Arrow, and whether the document fits."""
    schema = StructType([StructField("v", kind)])
    structs, misfits = TypedDocuments(schema, **options).read_all([bson.encode({"v": value})])
    [row] = pa.array(structs, type=to_arrow_type(schema, timezone="UTC")).to_pylist()
    return row["v"], not misfits


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (ByteType(), -128, -128),
        (ShortType(), 32767, 32767),
        (IntegerType(), Int64(2**31 - 1), 2**31 - 1),
        (LongType(), 5.0, 5),
        (DecimalType(10, 2), Decimal128("12345678.9"), Decimal("12345678.90")),
        (DecimalType(10, 2), Decimal128("1.500"), Decimal("1.50")),
        (TimestampType(), DatetimeMS(-1), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        (TimestampNTZType(), NOON, NOON.replace(tzinfo=None)),
        (DateType(), datetime(1969, 12, 31, tzinfo=UTC), date(1969, 12, 31)),
        (BinaryType(), UUID_7, bytes(UUID_7)),
        (ArrayType(POINT), [{"x": 1}], [{"x": 1, "y": None}]),
        (MapType(StringType(), LongType()), {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (POINT, {}, {"x": None, "y": None}),
        (
            StructType([StructField("$ref", StringType()), StructField("$id", LongType())]),
            DBRef("orders", 1),
            {"$ref": "orders", "$id": 1},
        ),
        (POINT, None, None),
    ],
)
def test_values_that_fit(kind, value, expected):
    assert read(kind, value) == (expected, True)


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (ByteType(), 128, None),
        (IntegerType(), Int64(2**31), None),
        (LongType(), 2.0**63, None),
        (LongType(), True, None),
        (DoubleType(), Decimal128("1.5"), None),
        (DecimalType(4, 2), 1.25, None),
        (BooleanType(), 1, None),
        (TimestampType(), DatetimeMS(2**62), None),
        (TimestampType(), Timestamp(5, 6), None),
        (DateType(), NOON, None),
        (ArrayType(LongType()), [1, "a"], [1, None]),
        (ArrayType(StringType()), ["a", Regex("a")], ["a", None]),
        (MapType(StringType(), LongType()), {"a": MaxKey()}, [("a", None)]),
        (POINT, {"x": 1, "y": "b"}, {"x": 1, "y": None}),
        (POINT, {"x": 1, "z": 1}, {"x": 1, "y": None}),
    ],
)
def test_values_that_do_not_fit_are_reported(kind, value, kept):
    assert read(kind, value) == (kept, False)


def test_fields_that_the_schema_lacks_can_be_ignored():
    assert read(POINT, {"x": 1, "z": 1}, rescues_unknown=False) == ({"x": 1, "y": None}, True)
    assert read(POINT, {"x": "1", "z": 1}, rescues_unknown=False)[1] is False


scalar_types = st.sampled_from(
    [
        StringType(), ByteType(), IntegerType(), LongType(), DoubleType(), DecimalType(20, 3),
        BooleanType(), TimestampType(), DateType(), BinaryType(),
    ]
)  # fmt: skip
types = st.recursive(
    scalar_types,
    lambda inner: (
        st.builds(ArrayType, inner)
        | st.builds(lambda kind: MapType(StringType(), kind), inner)
        | st.builds(
            lambda kinds: StructType([StructField(name, kind) for name, kind in kinds.items()]),
            st.dictionaries(st.sampled_from("aä_."), inner, min_size=1, max_size=3),
        )
    ),
    max_leaves=5,
)
schemas = st.builds(
    lambda kinds: StructType([StructField(name, kind) for name, kind in kinds.items()]),
    st.dictionaries(st.sampled_from(["a", "ä", "_", ".", "decimal", "uuid", "list"]), types),
)


def is_kept(value: Any, found: Any) -> bool:
    """Whether a value of a document is in a struct without loss, told by its values alone."""
    if value is None:
        return found is None
    if isinstance(value, DBRef):
        value = value.as_doc()
    if isinstance(value, dict):
        pairs = dict(found) if isinstance(found, list) else found
        return isinstance(pairs, dict) and all(
            is_kept(item, pairs.get(name)) for name, item in value.items()
        )
    if isinstance(value, list):
        return len(value) == len(found) and all(map(is_kept, value, found))
    if isinstance(found, datetime | date):
        moment = datetime(found.year, found.month, found.day, tzinfo=UTC)
        moment = found if isinstance(found, datetime) else moment
        return DatetimeMS(moment) == value
    if isinstance(value, Decimal128):
        return bool(found == value.to_decimal())
    if isinstance(value, ObjectId):
        return bool(found == str(value))
    if isinstance(value, Binary):
        return bool(found == bytes(value))
    return bool(found == value or (value != value and found != found))  # NaN


@given(documents, schemas)
def test_a_document_that_fits_is_in_its_struct_without_loss(document, schema):
    raw = bson.encode(document | {"uuid": UUID_7, "decimal": Decimal128("1.10"), "list": [1, 2]})
    structs, misfits = TypedDocuments(schema).read_all([raw])
    [row] = pa.array(structs, type=to_arrow_type(schema, timezone="UTC")).to_pylist()
    codec = bson.CodecOptions(datetime_conversion=bson.DatetimeConversion.DATETIME_MS)
    assert misfits or is_kept(bson.decode(raw, codec), row)


def event(**documents_of_event: Any) -> RawBSONDocument:
    return RawBSONDocument(bson.encode({"_id": {"_data": event_token(1, 1)}, **documents_of_event}))


def test_a_schema_as_json_becomes_nullable():
    point = StructType([StructField("x", LongType(), nullable=False), POINT["y"]])
    found = from_json(StructType([StructField("p", point, nullable=False)]).json())
    assert found["p"].nullable
    assert found["p"].dataType == POINT
    assert ddl_of(found) == "STRUCT<`p`: STRUCT<`x`: bigint, `y`: bigint>>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must not be empty"),
        ("n BIGINT NOT NULL", "remove NOT NULL"),
        ('{"type": "struct"}', "not a schema of Spark"),
        (StructType([StructField("f", FloatType())]).json(), "cannot be read as float"),
        (StructType([StructField("m", MapType(LongType(), LongType()))]).json(), "map<bigint"),
    ],
)
def test_invalid_schemas_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        document_schema(text)


@pytest.mark.parametrize("text", ["`not null` INT, `a``b` INT, `*` INT COMMENT 'is NOT NULL'"])
def test_quoted_names_and_comments_may_contain_anything(text: str) -> None:
    assert document_schema(text) == text
