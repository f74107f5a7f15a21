"""The router's token parser reads what the embedded cluster's independent encoder makes."""

from datetime import UTC, datetime
from uuid import UUID

from bson.binary import Binary
from bson.code import Code
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from embedded.change_streams.resume_token import ResumeToken as Made
from router.tokens.resume_token import (
    ResumeToken,
    as_version,
    cluster_time_of,
    version_of,
)

WHOLE = UUID("ab" * 16)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=4)
EXACT = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**62), 2**62).map(Int64),
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.binary(max_size=300),
    st.binary(max_size=5).map(lambda b: Binary(b, 5)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.sampled_from(
        [
            MinKey(),
            MaxKey(),
            Timestamp(5, 6),
            datetime(2026, 1, 1, tzinfo=UTC),
            Regex("a+", "i"),
            Code("f()"),
            1.0,
        ]
    ),
)
VALUES = st.recursive(
    EXACT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
ANY = VALUES | st.floats(allow_nan=True) | st.sampled_from([Decimal128("0.5"), 2.0**70])


def made(version: int, identifier: dict | None, **more) -> Made:
    return Made(
        Timestamp(7, 3),
        version,
        uuid=Binary(WHOLE.bytes, 4),
        event_identifier=identifier,
        **more,
    )


def newer(document_key: dict, operation: str = "update", **more) -> Made:
    return made(2, {"operationType": operation, "documentKey": document_key}, **more)


def key_of(token: Made) -> bytes:
    return token.key().hex().upper().encode()


@given(st.dictionaries(NAMES, VALUES, max_size=3), st.integers(0, 200), st.integers(0, 300))
@example({"_id": b"x" * 255}, 1, 0)
def test_every_part_is_parsed_as_written(document_key, fragment, index):
    document = newer(document_key, fragment=fragment, txn_op_index=index).document()
    token = ResumeToken.parse(document)
    assert (token.cluster_time, token.version, token.uuid) == (Timestamp(7, 3), 2, WHOLE)
    assert (token.fragment_num, token.txn_op_index) == (fragment, index)
    assert token.data.decode() == document["_data"]


@given(st.dictionaries(NAMES, ANY, max_size=3))
def test_every_document_key_is_accepted(document_key):
    for token in (newer(document_key), made(1, document_key), newer(document_key, fragment=1)):
        document = token.document()
        read = ResumeToken.parse(document)
        assert read.data.decode() == document["_data"]
        assert cluster_time_of(read.data) == Timestamp(7, 3)
        assert version_of(read.data) == read.version == token.version


@given(st.dictionaries(NAMES, VALUES, max_size=3), st.booleans())
def test_the_older_version_equals_an_older_shard_s_token(document_key, invalidate):
    token = newer(document_key, from_invalidate=invalidate)
    older = made(1, document_key, from_invalidate=invalidate)
    assert as_version(key_of(token), 1) == key_of(older)
    oldest = made(0, document_key)
    assert as_version(key_of(token), 0) == as_version(key_of(older), 0) == key_of(oldest)
