"""BSON as the Java driver's extended JSON. The expected texts are Debezium's own."""

import json
import struct
from typing import Any

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
    json_util,
)
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_client.bson.values import DOCUMENT
from spark_sink.debezium.java_json import JavaColumns, JavaJson, embedded
from spark_sink.rows.layouts import Values
from spark_sink.rows.text_columns import joined_text
from tests.unit.spark_sink.documents import MONGO_VALUES, documents

STRICT = JavaJson(relaxed=False, separator=",")
KEY = JavaJson(relaxed=True, separator=",")
UPDATED = JavaJson(relaxed=True, separator=", ")
_LEGACY = json_util.JSONOptions(
    json_mode=json_util.JSONMode.LEGACY,
    strict_number_long=True,
    datetime_representation=json_util.DatetimeRepresentation.LEGACY,
)


@pytest.mark.parametrize(
    ("value", "strict", "relaxed"),
    [
        (1, "1", "1"),
        (Int64(1099511627821), '{"$numberLong": "1099511627821"}', "1099511627821"),
        (True, "true", "true"),
        (None, "null", "null"),
        ('O\'Brien "x"\\ / \n\t\x01', *['"O\'Brien \\"x\\"\\\\ / \\n\\t\\u0001"'] * 2),
        ("ä日 \u00ad😀\u2028\x7f\u0301", *['"ä日 \\u00ad\\ud83d\\ude00\\u2028\\u007f\\u0301"'] * 2),
        ({}, "{}", "{}"),
        ([[], {"a": [1, "x"]}], *['[[],{"a": [1,"x"]}]'] * 2),
        (ObjectId(b"a" * 12), *['{"$oid": "616161616161616161616161"}'] * 2),
        (DatetimeMS(280), '{"$date": 280}', '{"$date": "1970-01-01T00:00:00.28Z"}'),
        (DatetimeMS(1000), '{"$date": 1000}', '{"$date": "1970-01-01T00:00:01Z"}'),
        (DatetimeMS(-1), '{"$date": -1}', '{"$date": {"$numberLong": "-1"}}'),
        (
            DatetimeMS(253_402_300_800_000),
            '{"$date": 253402300800000}',
            '{"$date": {"$numberLong": "253402300800000"}}',
        ),
        (
            Binary(b"a", 4),
            '{"$binary": "YQ==","$type": "04"}',
            '{"$binary": {"base64": "YQ==","subType": "04"}}',
        ),
        (
            Binary(b"a", 2),
            '{"$binary": "YQ==","$type": "02"}',
            '{"$binary": {"base64": "YQ==","subType": "02"}}',
        ),
        (
            Regex('q"', "xi"),
            '{"$regex": "q\\"","$options": "ix"}',
            '{"$regularExpression": {"pattern": "q\\"","options": "ix"}}',
        ),
        (Code("f"), *['{"$code": "f"}'] * 2),
        (Code("f", {"x": 1}), *['{"$code": "f","$scope": {"x": 1}}'] * 2),
        (Timestamp(5, 6), *['{"$timestamp": {"t": 5,"i": 6}}'] * 2),
        (Decimal128("1.20E+6"), *['{"$numberDecimal": "1.20E+6"}'] * 2),
        (Decimal128("NaN"), *['{"$numberDecimal": "NaN"}'] * 2),
        (MinKey(), *['{"$minKey": 1}'] * 2),
        (MaxKey(), *['{"$maxKey": 1}'] * 2),
        (DBRef("a", 1, "b"), *['{"$ref": "a","$id": 1,"$db": "b"}'] * 2),
        (float("nan"), "NaN", '{"$numberDouble": "NaN"}'),
        (float("-inf"), "-Infinity", '{"$numberDouble": "-Infinity"}'),
    ],
)
def test_each_type_in_both_modes(value: Any, strict: str, relaxed: str) -> None:
    document = bson.encode({"v": value})
    assert STRICT.value(DOCUMENT, document) == f'{{"v": {strict}}}'
    assert KEY.value(DOCUMENT, document) == f'{{"v": {relaxed}}}'
    kind, data = document[4], document[7:-1]
    assert KEY.value(kind, data) == relaxed


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (0.001, "0.001"), (9.99e-4, "9.99E-4"), (1e7, "1.0E+7"),
        (-9999999.5, "-9999999.5"), (-1e7, "-1.0E+7"), (1e20, "1.0E+20"), (5e-324, "4.9E-324"),
        (2e23, "2.0E+23"), (2.0**-24, "5.960464477539063E-8"), (100.0, "100.0"),
        (123456789012345680.0, "1.2345678901234568E+17"),
        (1.7976931348623157e308, "1.7976931348623157E+308"), (20500000.0, "2.05E+7"),
        (12345678.9, "1.23456789E+7"),
    ],
)  # fmt: skip
def test_doubles_are_java_s(number: float, text: str) -> None:
    document = bson.encode({"v": number})
    assert STRICT.value(DOCUMENT, document) == f'{{"v": {text}}}'
    old = JavaJson(relaxed=False, separator=",", plus=False)
    assert old.value(DOCUMENT, document) == f'{{"v": {text.replace("E+", "E")}}}'


def test_types_that_drivers_no_longer_write() -> None:
    values = {
        b"\x06": (b"", '{"$undefined": true}'),
        b"\x0e": (b"\x03\0\0\0ab\0", '{"$symbol": "ab"}'),
        b"\x0c": (
            b"\x02\0\0\0c\0" + b"a" * 12,
            '{"$ref": "c","$id": {"$oid": "616161616161616161616161"}}',
        ),
    }
    for kind, (data, text) in values.items():
        body = kind + b"v\0" + data
        document = struct.pack("<i", len(body) + 5) + body + b"\0"
        assert STRICT.value(DOCUMENT, document) == f'{{"v": {text}}}'


@given(documents)
def test_documents_are_what_pymongo_writes_but_for_spaces_and_numbers(document: Any) -> None:
    data = bson.encode({**MONGO_VALUES, "more": document})
    codec = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
    text = json_util.dumps(bson.decode(data, codec), json_options=_LEGACY)
    assert json.loads(STRICT.value(DOCUMENT, data), parse_constant=str) == json.loads(
        text, parse_constant=str
    )


@settings(max_examples=40)
@given(st.lists(documents, max_size=4), st.integers(1, 40))
def test_many_documents_have_the_texts_of_each(different: list[Any], copies: int) -> None:
    uniform = [
        {
            **MONGO_VALUES,
            "n": number,
            "d": number * 1e5,
            "l": [{"x": [number]}, {}],
            "t": "ä" * number,
        }
        for number in range(copies)
    ]
    data = [bson.encode({"more": each}) for each in different * copies]
    data += [bson.encode(each) for each in uniform]
    for json_of in (STRICT, KEY, UPDATED):
        texts = joined_text(JavaColumns(json_of).documents(Values.of(data)), len(data))
        assert texts.to_pylist() == [embedded(json_of.value(DOCUMENT, each)) for each in data]


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_broken_document_is_told(cut: int) -> None:
    with pytest.raises(InvalidBSON):
        STRICT.value(DOCUMENT, bson.encode({"a": "text", "b": [1, 2]})[:-cut])
