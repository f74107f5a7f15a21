import contextlib

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_client.bson.values import NESTED
from shard_client.errors import ProtocolError
from shard_client.wire.bson_slices import cut_document, iter_elements, nested_start
from tests.unit.shard_client.bson_values import documents


def validate(raw: bytes) -> None:
    """Read every field of a document at all depths."""
    pending = [(0, len(raw))]
    while pending:
        elements = list(iter_elements(raw, *pending.pop()))
        nested = (each for each in elements if each.type in NESTED)
        pending += [(nested_start(raw, each), each.end) for each in nested]


@given(documents)
def test_slices_are_the_decoder_s_fields_and_cover_the_document(document):
    raw = bson.encode(document)
    elements = list(iter_elements(raw))
    assert [element.name.decode() for element in elements] == list(bson.decode(raw))
    fields = [raw[e.start - len(e.name) - 2 : e.end] for e in elements]
    assert b"".join(fields) == raw[4:-1]
    validate(raw)


@given(documents, st.data())
def test_damaged_documents_raise_only_protocol_errors(document, data):
    raw = bytearray(bson.encode(document))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        validate(bytes(raw))


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (b"\x02a\0\x05\0\0\0abc\0", "does not fit|wrong length"),
        (b"\x02a\0\x00\0\0\0", "wrong length"),
        (b"\x02a\0\x02\0\0\0ab", "wrong length"),
        (b"\x05a\0\xff\xff\xff\xff\0", "does not fit"),
        (b"\x05a\0\xff\0\0\0\0", "does not fit"),
        (b"\x12a\0\0\0\0", "does not fit"),
        (b"\x20a\0", "unknown BSON type"),
        (b"\x0ba\0abc\0", "does not fit"),
        (b"\x03a\0\x04\0\0\0", "cut off|claims"),
        (b"\x10ab", "does not end"),
    ],
)
def test_errors_name_the_wrong_field(field, why):
    raw = (len(field) + 5).to_bytes(4, "little") + field + b"\0"
    with pytest.raises(ProtocolError, match=why):
        validate(raw)


@given(documents, st.integers(0, 400))
def test_a_shortened_document_has_the_first_fields(document: dict[str, object], most: int) -> None:
    encoded = bson.encode({"a": document, "b": [document, 1]})
    cut = cut_document(encoded, most)
    validate(cut)
    assert len(cut) <= most + 100
    assert cut_document(encoded, len(encoded)) == encoded
    names = [element.name for element in iter_elements(cut)]
    assert names == [b"a", b"b"][: len(names)]
