"""KeyStrings sort as their values do, and decode to them."""

import math
from contextlib import suppress
from datetime import datetime

import bson
import pytest
from bson.binary import Binary
from bson.code import Code
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from embedded.keystring import encode_key
from embedded.keystring_decoding import decode_key
from embedded.storage.ordering import sort_key
from shard_client.errors import CommandError

integers = st.integers(-(2**63), 2**63 - 1)
doubles = st.floats(allow_nan=False)
digits = st.integers(-(10**34) + 1, 10**34 - 1)
decimals = st.builds(
    lambda n, e: Decimal128(f"{n}E{e}"),
    digits,
    st.one_of(st.integers(-40, 10), st.integers(-330, 400)),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    integers.map(Int64),
    doubles,
    decimals,
    st.text(max_size=8),
    st.binary(max_size=300).map(Binary),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(  # noqa: DTZ001
        lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000)
    ),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from([MinKey(), MaxKey(), Regex("a.b", "im"), Code("x"), Code("y", {"a": 1})]),
)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (Timestamp(0x620B98E5, 2), "82620B98E500000002"),
        (0, "29"),
        (1, "2B02"),
        (127, "2BFE"),
        (128, "2C0100"),
        (-1, "27FD"),
        (-128, "26FEFF"),
        (2**31, "2F0100000000"),
        (1.5, "2B0380000000000000"),
        (-1.5, "27FC7FFFFFFFFFFFFF"),
        (False, "6E"),
        (True, "6F"),
        (None, "14"),
        ("ab", "3C616200"),
        ("a\0b", "3C6100FF6200"),
        ({"_id": "x"}, "463C5F6964003C780000"),
        ([1, "a"], "502B023C610000"),
        (Binary(b"\1\2", 0), "5A02000102"),
        (ObjectId("0123456789abcdef01234567"), "640123456789ABCDEF01234567"),
        (datetime(1970, 1, 1), "788000000000000000"),  # noqa: DTZ001
        (MinKey(), "0A"),
        (MaxKey(), "F0"),
        (math.nan, "1E"),
        (math.inf, "33FFFFFFFFFFFFFFFF"),
        (-math.inf, "1F0000000000000000"),
    ],
)
def test_known_keys_are_encoded_and_decoded(value, key):
    assert encode_key([value])[0].hex().upper() == key + "04"


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        ([1], ""),
        ([Int64(1)], "02"),
        ([1.0], "01"),
        ([1, 128, 0, Int64(5)], "8180"),
        ([-0.0], "03"),
        ([1, "a", {"n": Decimal128("1.5")}], "82D807"),
    ],
)
def test_known_type_bits_are_encoded(value, bits):
    assert encode_key(value)[1].hex().upper() == bits


def as_bson(value):
    return bson.encode({"": value})


@given(values)
def test_values_round_trip(value):
    key, bits = encode_key([value, 5])
    found, five = decode_key(key, bits)
    assert five == 5
    assert encode_key([found, 5]) == (key, bits)
    assert sort_key(bson.decode(as_bson(found))) == sort_key(bson.decode(as_bson(value)))


def test_decimals_of_all_magnitudes_sort_and_round_trip():
    texts = [
        "-1E+400", "-12345678901234567890.12345", "-9007199254740993.5", "-1E-320", "0",
        "1E-6176", "9.9E-400", "1E-320",
        "3E-308", "0.1234567890123456789012345678901234", "1.000000000000000000000000000000001",
        "1234567890123456.5", "9007199254740993.5", "9223372036854775808.5",
        "12345678901234567890.12345", "1E+400",
    ]  # fmt: skip
    decimals = [Decimal128(text) for text in texts]
    encoded = [encode_key([each]) for each in decimals]
    assert [key for key, _bits in encoded] == sorted(key for key, _bits in encoded)
    for each, (key, bits) in zip(decimals, encoded, strict=True):
        [found] = decode_key(key, bits)
        assert found.to_decimal() == each.to_decimal()


@given(st.lists(scalars, min_size=2, max_size=5))
def test_keys_sort_as_values(items):
    by_value = sorted(items, key=sort_key)
    assert [sort_key(v) for v in sorted(items, key=lambda v: encode_key([v])[0])] == [
        sort_key(v) for v in by_value
    ]


@given(st.one_of(integers, doubles, decimals), st.one_of(integers, doubles, decimals))
def test_numbers_of_all_types_share_one_order(left, right):
    a, b = encode_key([left])[0], encode_key([right])[0]
    left_key, right_key = sort_key(left), sort_key(right)
    assert (a < b, a == b) == (left_key < right_key, left_key == right_key)


@given(st.binary(max_size=60), st.binary(max_size=4))
def test_garbage_is_an_error_or_values(key, bits):
    with suppress(CommandError):
        decode_key(key, bits)
