from uuid import UUID

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from embedded.change_streams.tokens import KeyStringBuilder, event_token
from shard_client.bson.keystring import Kind
from shard_client.bson.resume_token import (
    ResumeToken,
    as_version,
    cluster_time_of,
    is_invalidate,
    version_of,
)
from shard_client.bson.values import MalformedValueError
from tests.unit.shard_client.bson_values import documents

T = "82620B98E500000002"
HEAD = T + "2B022C0100296E"
UUID_1 = "5A1004" + "AB" * 16


def parse(data: str) -> ResumeToken:
    return ResumeToken.parse({"_data": data})


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


def made(version: int, identifier: dict, **more) -> ResumeToken:
    uuid = UUID("ab" * 16)
    return event_token(Timestamp(7, 3), version, identifier, uuid=uuid, **more)


def newer(document_key: dict, **more) -> ResumeToken:
    return made(2, {"operationType": "update", "documentKey": document_key}, **more)


@given(documents, st.integers(0, 200), st.integers(0, 300))
@example({"_id": b"x" * 255}, 1, 0)
def test_every_part_is_parsed_as_written(document_key, fragment, index):
    whole = newer(document_key, txn_op_index=index)
    part = whole.with_fragment(fragment)
    others = made(1, document_key), made(0, document_key), part.token_of_invalidate()
    for token in (whole, part, *others):
        assert ResumeToken.parse(token.document) == token
        assert cluster_time_of(token.data) == Timestamp(7, 3)
        assert version_of(token.data) == token.version
        assert is_invalidate(token.data.decode()) == token.from_invalidate
    assert (part.fragment_num, part.without_fragment()) == (fragment, whole)
    key = KeyStringBuilder()
    identifier = {"operationType": "update", "documentKey": document_key}
    for value in (Timestamp(7, 3), 2, 128, index, False, UUID("ab" * 16), identifier, fragment):
        key.append(value)
    assert part.data.decode() == key.key().hex().upper()
    assert part.type_bits == (key.type_bits() or None)


@given(documents, st.booleans())
def test_the_older_version_equals_an_older_shard_s_token(document_key, invalidate):
    token = newer(document_key, from_invalidate=invalidate)
    older = made(1, document_key, from_invalidate=invalidate)
    assert as_version(token.data, 1) == older.data
    for operation in (b"update", b"other"):  # version 2 names the type itself
        assert token.in_version(1, operation) == older
    assert older.in_version(2, b"update") == token
    assert older.in_version(2, b"drop") is token.with_fragment(1).in_version(1, b"update") is None
    for version in (1, 2):
        index = made(version, {"operationType": "modify", "operationDescription": document_key})
        assert index.in_version(3 - version, b"modify").in_version(version, b"modify") == index
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
    assert whole.with_fragment(1) == part.with_fragment(1) == part
    assert part.without_fragment() == whole
