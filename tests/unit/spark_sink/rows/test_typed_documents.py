"""Documents as structs: which values fit which types, and that nothing becomes null in silence."""

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
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
from bson.regex import Regex
from bson.timestamp import Timestamp
from deltalake import DeltaTable
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

from spark_sink.events.slices import CODEC
from spark_sink.rows import inferred_schema
from spark_sink.rows.inferred_schema import extends, grown, merged, schema_of
from spark_sink.rows.row_schema import ddl_of, document_schema, schema_from_json
from spark_sink.rows.typed_documents import InferredDocuments, TypedDocuments
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.table_state import Batch
from tests.unit.spark_sink.documents import documents

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


def test_a_schema_as_json_becomes_nullable():
    point = StructType([StructField("x", LongType(), nullable=False), POINT["y"]])
    found = schema_from_json(StructType([StructField("p", point, nullable=False)]).json())
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


SCALARS = (
    5, Int64(7), 0.5, Decimal128("1.25"), "x", ObjectId("0" * 24), True, b"x", None, Regex("x"),
    datetime(2024, 2, 29, 12, tzinfo=UTC),
)  # fmt: skip


def document(chance: random.Random, depth: int = 2) -> dict[str, Any]:
    """A document with fields of few names, so that types meet."""
    return {name: value(chance, depth) for name in "abcd" if chance.random() < 0.6}


def value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(6)
    if kind == 0 and depth:
        return document(chance, depth - 1)
    if kind == 1 and depth:
        return [value(chance, depth - 1) for _ in range(chance.randrange(3))]
    return chance.choice(SCALARS)


def schema(documents: list[dict[str, Any]]) -> StructType:
    return schema_of([bson.decode(bson.encode(each), CODEC) for each in documents])


def normal(kind: Any) -> Any:
    """A type with the fields of structs in the order of their names."""
    if isinstance(kind, StructType):
        fields = sorted(kind.fields, key=lambda each: str(each.name))
        return [(each.name, normal(each.dataType)) for each in fields]
    return normal(kind.elementType) if hasattr(kind, "elementType") else kind


@pytest.mark.parametrize("seed", range(40))
def test_the_merge_of_schemas_is_commutative_associative_and_idempotent(seed: int) -> None:
    chance = random.Random(seed)
    documents = [document(chance) for _ in range(6)]
    a, b, c = (schema(documents[at : at + 2]) for at in (0, 2, 4))
    assert normal(merged(a, b)) == normal(merged(b, a))
    assert merged(merged(a, b), c) == merged(a, merged(b, c))
    assert merged(a, a) == a
    assert merged(merged(a, b), b) == merged(a, b)
    assert normal(merged(merged(a, b), c)) == normal(schema(documents))
    assert not extends(schema([{"v": [0.5]}]), schema([{"v": [5]}]))


@pytest.mark.parametrize("seed", range(15))
def test_documents_fit_the_schema_of_all_of_them(seed: int) -> None:
    chance = random.Random(seed)
    documents = [{**document(chance), "_id": number} for number in range(20)]
    typed = InferredDocuments(schema(documents))
    for each in documents:
        encoded = bson.encode(each)
        structs, misfits = typed.read_all([encoded])
        pa.array(structs, to_arrow_type(typed.schema, timezone="UTC"))
        assert (misfits == []) == (typed.misfits(encoded) is None)
        has_no_type = any(not schema([{"v": item}]).fields for item in each.values())
        has_no_type |= "Regex" in str(each) or "[]" in str(each) or "{}" in str(each)
        assert not misfits or has_no_type


@pytest.mark.parametrize(
    ("values", "name", "kept"),
    [
        ([1, 2], "int", [1, 2]),
        ([1, Int64(2)], "bigint", [1, 2]),
        ([1, 2.5], "double", [1.0, 2.5]),
        ([Int64(2**60), 2.5], "double", [None, 2.5]),
        ([0.1, Decimal128("2")], "decimal(38,18)", [Decimal("0.1"), Decimal(2)]),
        ([float("nan"), Decimal128("2")], "decimal(38,18)", [None, Decimal(2)]),
        ([1, "x", 2.0, Decimal128("2.50")], "string", ["1", "x", "2.0", "2.50"]),
        ([True, "x", None], "string", ["true", "x", None]),
        ([[1], {"a": 1}], "string", ["[1]", '{"a":1}']),
        ([datetime(2024, 1, 1, tzinfo=UTC), "x"], "string", ["2024-01-01T00:00:00Z", "x"]),
        ([[1], [2.5], []], "array<double>", [[1.0], [2.5], []]),
    ],
)
def test_types_widen_by_the_rule(values: list[Any], name: str, kept: list[Any]) -> None:
    found = schema([{"v": each} for each in values])
    assert found["v"].dataType.simpleString() == name
    typed = InferredDocuments(found)
    encoded = [bson.encode({"v": each}) for each in values]
    read, misfits = typed.read_all(encoded)
    assert [each.get("v") for each in read] == kept
    assert [encoded.index(each) for each in encoded if typed.misfits(each)] == misfits
    lost = [
        at for at, (value, each) in enumerate(zip(values, kept, strict=True))
        if each is None and value is not None
    ]  # fmt: skip
    assert misfits == lost


def test_a_table_does_not_get_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferred_schema, "MOST_FIELDS", 4)
    begun = schema([{"_id": 1, "s": {"x": 1}}])
    more = schema([{"TOKEN": 1, "S": 1, "s": {"X": 1, "y": 1}, "a b": 1, "q": 1}])
    found = grown(begun, more, ["token"])
    assert found.simpleString() == "struct<_id:int,s:struct<x:int,y:int>>"
    assert grown(begun, schema([{"_id": 1.5}])) == StructType(
        [StructField("_id", schema([{"_id": 1.5}])["_id"].dataType), begun["s"]]
    )
    assert grown(StructType([]), schema([{"a": 1}, {"a": "x"}])) == StructType(
        [StructField("a", StringType())]
    )
    monkeypatch.setattr(inferred_schema, "MOST_FIELDS", 5)
    assert "q" in grown(begun, more, ["token"]).fieldNames()


@pytest.mark.parametrize("nest", [lambda value: {"d": value}, lambda value: [value]])
def test_a_table_does_not_get_columns_that_its_readers_cannot_read(
    tmp_path: Path, nest: Callable[[Any], Any]
) -> None:
    deep: Any = 1
    for _ in range(90):
        deep = nest(deep)
    shallow = {"_id": 1, "in": {"x": {"y": 1}}}
    found = grown(StructType([]), schema([shallow, {"_id": 2, "in": {"deep": deep}}]))
    assert found == schema([shallow])
    assert InferredDocuments(found).misfits(bson.encode({"in": {"deep": deep}})) is not None

    # The deepest columns can be read.
    while deep != 1 and grown(StructType([]), schema([{"v": deep}])) == StructType([]):
        deep = next(iter(deep.values() if isinstance(deep, dict) else deep))
    assert deep != 1
    rows = pa.Table.from_pylist([{"v": deep}])
    DeltaLog(str(tmp_path)).append_rows(rows, Batch("q", 0))
    assert DeltaTable(tmp_path).to_pyarrow_table()["v"].to_pylist() == [deep]
