"""KeyStrings sort as their values do."""

import math
from datetime import datetime
from typing import Any

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

from embedded.change_streams.tokens import KeyStringBuilder
from embedded.storage.ordering import sort_key
from shard_client.bson.values import MalformedValueError

integers = st.integers(-(2**63), 2**63 - 1)
numbers = integers | st.floats(allow_nan=False) | st.just(Decimal128("2.50"))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    integers.map(Int64),
    st.text(max_size=8),
    st.binary(max_size=300).map(Binary),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(  # noqa: DTZ001
        lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000)
    ),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from([MinKey(), MaxKey(), Regex("a.b", "im"), Code("x")]),
)


def encode_key(values: list[Any]) -> tuple[bytes, bytes]:
    builder = KeyStringBuilder()
    for value in values:
        builder.append(value)
    return builder.key(), builder.type_bits()


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
def test_known_keys_are_encoded(value, key):
    assert encode_key([value])[0].hex().upper() == key + "04"


def test_decimals_that_no_double_equals_are_refused():
    with pytest.raises(MalformedValueError):
        encode_key([Decimal128("0.1")])


@given(st.lists(scalars, min_size=2, max_size=5))
def test_keys_sort_as_values(items):
    by_value = sorted(items, key=sort_key)
    assert [sort_key(v) for v in sorted(items, key=lambda v: encode_key([v])[0])] == [
        sort_key(v) for v in by_value
    ]
