from datetime import UTC, datetime
from uuid import UUID

import bson
import pytest
from bson.binary import Binary
from bson.code import Code
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from shard_client.bson.keystring import KeyStringBuilder, Kind
from shard_client.bson.resume_token import (
    ResumeToken,
    as_newest,
    as_version,
    cluster_time_of,
    first_key,
    is_invalidate,
    version_of,
)
from shard_client.bson.values import MalformedValueError
from shard_client.remote_cursor.cursor_reply import event_key, token_of
from tests.unit.router.made_tokens import UUID_ZERO, data_of, event

T = "82620B98E500000002"
HEAD = T + "2B022C0100296E"
UUID_1 = "5A1004" + "AB" * 16


def parse(data: str) -> ResumeToken:
    return ResumeToken.parse({"_data": data})


def test_an_insert_of_version_1():
    identifier = "46645F69640064" + "0B" * 12 + "00"
    token = parse(HEAD + UUID_1 + identifier + "04")
    assert token.cluster_time == Timestamp(0x620B98E5, 2)
    assert (token.version, token.token_type, token.txn_op_index) == (1, 128, 0)
    assert (token.from_invalidate, token.fragment_num) == (False, None)
    assert token.uuid == UUID("ab" * 16)
    assert token.event_identifier == bytes.fromhex(identifier)
    assert not token.is_high_water_mark


@pytest.mark.parametrize(
    ("version", "data"), [(1, T + "2B0229296E04"), (2, T + "2B0429296E1404"), (0, T + "292904")]
)
def test_high_water_marks_round_trip(version, data):
    mark = ResumeToken.high_water_mark(Timestamp(0x620B98E5, 2), version)
    assert mark.data == data.encode()
    assert bson.decode(mark.raw) == {"_data": data}
    parsed = parse(data)
    assert parsed.raw == mark.raw
    assert version_of(mark.data) == version
    assert parsed.is_high_water_mark == (version > 0)


def test_a_high_water_mark_sorts_between_cluster_times():
    for version in (1, 2):
        before = data_of(7, 3, inc=1, version=version).encode()
        at = data_of(7, 3, inc=2, version=version).encode()
        assert before < ResumeToken.high_water_mark(Timestamp(7, 2), version).data < at
    assert before < first_key(Timestamp(7, 2)) < at
    assert cluster_time_of(at) == Timestamp(7, 2)


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (T + "6E", 50854, "wrong type for version"),
        (HEAD + "3C6100", 207, "UUID"),
        (T + "2B042C0100296E14" + "4600" + "6E", 7182501, "fragmentNum"),
        (T + "2B042C0100296E14" + "4600" + "27FD", 7182501, "fragmentNum"),
        (T + "2B042C0100296E14" + "4600" + "2F0100000000", 7182501, "fragmentNum"),
        ("é1", 9, "not a valid hex string"),
    ],
)
def test_bad_tokens_have_mongos_s_errors(data, code, message):
    with pytest.raises(MalformedValueError) as caught:
        parse(data)
    assert caught.value.code == code
    assert message in str(caught.value)


def test_type_bits_are_kept():
    document = {"_data": data_of(1, 2), "_typeBits": b"\x01"}
    assert bson.decode(ResumeToken.parse(document).raw) == document


def test_trailing_bytes_and_lower_case_are_normalised():
    assert parse((T + "2B0229296E04FFFF").lower()).data == (T + "2B0229296E04").encode()


@pytest.mark.parametrize("key", ["4600", "463C6100461E5F6964002B03800000000000000000"])
@pytest.mark.parametrize(
    ("number", "encoded"), [(None, ""), (0, "29"), (2, "2B04"), (200, "2C0190")]
)
def test_a_fragment_s_number_is_parsed(key, number, encoded):
    """Also after a document key with a fraction."""
    whole = T + "2B042C0100296E" + UUID_1 + key
    token = parse(whole + encoded + "04")
    assert token.fragment_num == number
    assert token.event_identifier.hex().upper() == key
    assert token.whole_key.decode() == whole + "04"


@pytest.mark.parametrize(
    "key",
    [
        "461E5F6964002B038000000000000000",
        "461E5F69640033444444444444444400",
        "46645F69640046F05F00F00000",
        "46505F696400502B0227FD0000",
        "463C5F6964003C6100FF620000",
    ],
)
def test_any_document_key_is_accepted(key):
    token = parse(HEAD + UUID_1 + key + "04")
    assert token.event_identifier == bytes.fromhex(key)
    assert token.data.decode() == HEAD + UUID_1 + key + "04"


@given(st.binary(max_size=60))
@example(bytes.fromhex(HEAD + UUID_1 + "46" + "50" * 300))
@example(bytes.fromhex(HEAD + UUID_1 + "46" + "465F00" * 3000))
def test_any_other_input_is_malformed(junk):
    for data in (junk, bytes.fromhex(HEAD) + junk, bytes.fromhex(HEAD + UUID_1 + "46") + junk):
        try:
            token = parse(data.hex().upper())
        except MalformedValueError:
            continue
        assert parse(token.data.decode()).data == token.data


@pytest.mark.parametrize("number", [1, 17, 0])
@pytest.mark.parametrize("invalidate", [False, True])
@pytest.mark.parametrize("operation", ["insert", "delete", "drop", "invalidate"])
def test_an_older_version_of_the_same_token(operation, invalidate, number):
    newer = data_of(5, number, version=2, operation=operation, invalidate=invalidate)
    older = data_of(5, number, version=1, invalidate=invalidate)
    assert as_version(newer.encode(), 1) == older.encode()
    assert as_version(older.encode(), 1) == older.encode()


def test_token_versions_encode_a_missing_uuid_differently():
    newer = data_of(5, 0, version=2, operation="dropDatabase", uuid=None)
    assert as_version(newer.encode(), 1) == data_of(5, 0, uuid=None).encode()
    create = data_of(5, 3, version=2, operation="create").encode()
    assert as_version(create, 1) == create.replace(b"2B042C", b"2B022C", 1)


def test_a_document_key_with_a_fraction_changes_its_version_too():
    # Of 6.0: {_id: {of: 1.5, n: 92}}, the 11th operation of a transaction.
    front, uuid = "826B02540D00000022", "5A100421FC968BBB634B1B8F5190D11F5DABE2"
    key = "46465F696400461E6F66002B03800000000000001E6E002BB80000"
    operation = "463C6F7065726174696F6E54797065003C696E7365727400"
    newer = f"{front}2B042C01002B146E{uuid}{operation}46646F63756D656E744B657900{key}0004"
    older = f"{front}2B022C01002B146E{uuid}{key}04"
    assert as_version(newer.encode(), 1) == older.encode()


def test_version_0_has_neither_token_type_nor_from_invalidate():
    older = as_version(data_of(5, 3).encode(), 0).decode()
    assert older == f"82{5:08X}{1:08X}2929{UUID_ZERO}461E5F6964002B060004"
    token = parse(older)
    assert (token.version, token.txn_op_index, token.is_high_water_mark) == (0, 0, False)


def test_the_token_of_an_event():
    data = data_of(5, 3)
    assert bson.decode(token_of(event(data)[1])) == {"_data": data}
    moved = bson.encode({"a": 1, "_id": {"_data": data}})
    assert bson.decode(token_of(moved)) == {"_data": data}
    assert event_key(moved) == event_key(event(data)[1]) == data.encode()


NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=4)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
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
            Code("f()", {"x": 1.5}),
            DBRef("c", 1),
            Decimal128("0.5"),
        ]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.dictionaries(NAMES, VALUES, max_size=3)


def made(version: int, identifier: dict, **more) -> ResumeToken:
    uuid = UUID("ab" * 16)
    return ResumeToken.of_event(Timestamp(7, 3), version, identifier, uuid=uuid, **more)


def newer(document_key: dict, **more) -> ResumeToken:
    return made(2, {"operationType": "update", "documentKey": document_key}, **more)


@given(KEYS, st.integers(0, 200), st.integers(0, 300))
@example({"_id": b"x" * 255}, 1, 0)
def test_every_part_is_parsed_as_written(document_key, fragment, index):
    whole = newer(document_key, txn_op_index=index)
    part = whole.of_fragment(fragment)
    for token in (whole, part, made(1, document_key), made(0, document_key), part.of_invalidate()):
        assert ResumeToken.parse(token.document) == token
        assert cluster_time_of(token.data) == Timestamp(7, 3)
        assert version_of(token.data) == token.version
        assert is_invalidate(token.data.decode()) == token.from_invalidate
    assert (part.fragment_num, part.of_whole()) == (fragment, whole)
    key = KeyStringBuilder()
    identifier = {"operationType": "update", "documentKey": document_key}
    for value in (Timestamp(7, 3), 2, 128, index, False, UUID("ab" * 16), identifier, fragment):
        key.append(value)
    assert part.data.decode() == key.key().hex().upper()
    assert part.type_bits == (key.type_bits() or None)


@given(KEYS, st.booleans())
def test_the_older_version_equals_an_older_shard_s_token(document_key, invalidate):
    token = newer(document_key, from_invalidate=invalidate)
    older = made(1, document_key, from_invalidate=invalidate)
    assert as_version(token.data, 1) == older.data
    if document_key and not invalidate:
        assert as_newest(older.data, b"update") == token.data
    oldest = made(0, document_key)
    assert as_version(token.data, 0) == as_version(older.data, 0) == oldest.data


@pytest.mark.parametrize(
    ("key", "of_whole", "of_fragment"),
    [
        ("2B02", None, None),
        ("2B0380000000000000", "828000", "828000"),
        ("29", "83801D04", "84801D0400"),
        ("29", "83801704", "8480170400"),
        ("29", "828001", "828001"),
        ("1E", "828001", "828001"),
        ("33FFFFFFFFFFFFFFFF", "828001", "828001"),
        ("1F0000000000000000", "828001", "828001"),
        ("2AFEE6666666666666", "82807D", "83807D00"),
        ("33DFFE314DC6448D9338C15B0A00000000", "82807F", "83807F00"),
        ("2A00000000000000000000000000000001", "828001", "83800100"),
        ("330BF1DD21FED86E7D00245CD07E96AFF2", "82801D", "83801D00"),
        ("461E61002B021E62002B041E63002B0600", "820001", "820001"),
        ("461E61002B021E62002B041E63002B061E64002B0800", "820001", "83000100"),
        ("463C73003C7800AA6100AA66001E78002B03800000000000000000", "820001", "820001"),
    ],
)
def test_fragments_have_the_type_bits_of_a_server(key, of_whole, of_fragment):
    """Recorded from 6.0.15: numbers of all types, and documents that fill a byte or not."""
    first = int(key[:2], 16)
    kind = Kind.OBJECT if first == Kind.OBJECT else Kind.NAN
    names = [name.encode().hex().upper() for name in ("operationType", "documentKey", "_id")]
    front = f"{T}2B042C0100296E{UUID_1}463C{names[0]}003C7570646174650046{names[1]}0046"
    data = f"{front}{kind:02X}{names[2]}00{key}0000"
    whole, part = (
        ResumeToken.decode(data + end, None if bits is None else bytes.fromhex(bits))
        for end, bits in (("04", of_whole), ("2B0204", of_fragment))
    )
    assert (whole.of_fragment(1), part.of_whole(), part.of_fragment(1)) == (part, whole, part)
