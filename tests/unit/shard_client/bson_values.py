"""Hypothesis strategies for BSON documents of every type, and documents in the order given."""

import datetime
import re
from collections.abc import Mapping
from typing import Any

import bson
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import strategies as st

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    texts,
    st.binary(max_size=20),
    st.builds(Binary, st.binary(max_size=20), st.integers(5, 127)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**47).map(lambda ms: EPOCH + datetime.timedelta(milliseconds=ms)),
    st.builds(Regex, names, st.just(re.IGNORECASE)),
    st.builds(Code, texts),
    st.builds(Code, texts, st.dictionaries(names, texts, max_size=2)),
    st.just(Decimal128("1.5")),
    st.just(MinKey()),
    st.just(MaxKey()),
    st.builds(DBRef, st.just("c"), st.integers(0, 9)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=6,
)
documents = st.dictionaries(names, values, max_size=4)


def encoded(document: Mapping[str, Any]) -> bytes:
    """Encode as an inner document, since the encoder moves ``_id`` first in an outer one."""
    return bson.encode({"": document})[len(b"....\x03\0") : -1]
