"""The bounds of a snapshot's chunks."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId

from spark_sink.snapshot.plan import text_of, value_of


@pytest.mark.parametrize(
    "value",
    [
        *(1, Int64(1), 1.5, Decimal128("1.50"), ObjectId(), "a\0b", b"x", True, None),
        *(DatetimeMS(0), DatetimeMS(10**15), DatetimeMS(-(10**15)), {"at": DatetimeMS(2**62)}),
    ],
)
def test_a_bound_is_the_same_value_in_the_checkpoint(value: Any) -> None:
    assert bson.encode({"": value_of(text_of(value))}) == bson.encode({"": value})
