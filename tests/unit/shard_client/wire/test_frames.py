"""Frames, also compressed ones, and their damages."""

import contextlib

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_client.errors import ProtocolError
from shard_client.wire.compression import IDS, compress, decompress
from shard_client.wire.frames import (
    BODY_OFFSET,
    CHECKSUM_PRESENT,
    EXHAUST_ALLOWED,
    MORE_TO_COME,
    OP_MSG,
    OpMsg,
    build_msg,
    compress_frame,
    frame_length,
    more_to_come,
    parse_message,
    reply_body,
    with_ids,
)
from tests.unit.shard_client.bson_values import documents, names

PING = bson.encode({"ping": 1, "$db": "admin"})
ids = st.integers(-(2**31), 2**31 - 1)
flag_bits = st.sampled_from(
    [0, CHECKSUM_PRESENT, MORE_TO_COME, EXHAUST_ALLOWED, CHECKSUM_PRESENT | EXHAUST_ALLOWED]
)
sequences_of_documents = st.dictionaries(
    names, st.lists(documents.map(bson.encode), max_size=3), max_size=2
)


def _frame(content: bytes, op_code: int = OP_MSG) -> bytes:
    head = (16 + len(content), 1, 0, op_code)
    return b"".join(number.to_bytes(4, "little") for number in head) + content


def _crc32c(data: bytes) -> int:
    """Compute the checksum bit by bit, as it is defined."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_is_crc32c_of_the_preceding_bytes():
    frame = build_msg(PING, request_id=7, flags=CHECKSUM_PRESENT)
    assert _crc32c(b"123456789") == 0xE3069283
    assert int.from_bytes(frame[-4:], "little") == _crc32c(frame[:-4])
    damaged = bytearray(frame)
    damaged[BODY_OFFSET + 9] ^= 1
    with pytest.raises(ProtocolError, match="checksum"):
        parse_message(bytes(damaged))


@given(documents, sequences_of_documents, ids, ids, flag_bits)
def test_op_msg_round_trips(document, sequences, request_id, response_to, flags):
    body = bson.encode(document)
    frame = build_msg(
        body, request_id=request_id, response_to=response_to, flags=flags, sequences=sequences
    )
    message = parse_message(memoryview(frame))
    assert (message.request_id, message.response_to) == (request_id, response_to)
    assert message.payload == OpMsg(flags, body, sequences)
    assert frame_length(frame) == len(frame)
    assert more_to_come(frame) == bool(flags & MORE_TO_COME)
    if not sequences:
        assert reply_body(memoryview(frame)) == body


@pytest.mark.parametrize("compressor", IDS.values())
@given(document=documents, request_id=ids)
def test_compressed_messages_round_trip(compressor, document, request_id):
    body = bson.encode(document)
    frame = compress_frame(build_msg(body, request_id=request_id, response_to=5), compressor)
    message = parse_message(frame)
    assert (message.request_id, message.response_to, message.compressor) == (
        request_id,
        5,
        compressor,
    )
    assert message.payload == OpMsg(0, body)
    assert reply_body(memoryview(frame)) == body


@pytest.mark.parametrize("flags", [0, CHECKSUM_PRESENT])
def test_a_reply_must_respond_to_the_request(flags):
    frame = memoryview(build_msg(PING, request_id=3, response_to=4, flags=flags))
    assert reply_body(frame, 4) == PING
    with pytest.raises(ProtocolError, match="a reply to request 4, not 5"):
        reply_body(frame, 5)


@pytest.mark.parametrize("flags", [0, CHECKSUM_PRESENT])
def test_other_ids_keep_the_message_valid(flags):
    frame = build_msg(PING, request_id=3, response_to=4, flags=flags)
    assert b"".join(with_ids(frame, request_id=9, response_to=8)) == build_msg(
        PING, request_id=9, response_to=8, flags=flags
    )


EMPTY = b"\x05\0\0\0\0"


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (_frame(bytes(4)), "cut off"),
        (_frame(b"\x04\0\0\0\0" + PING), "flags 0x4"),
        (_frame(b"\0\x80\0\0\0" + PING), "flags 0x8000"),
        (_frame(bytes(5) + PING + b"\0" + PING), "two bodies"),
        (_frame(bytes(4) + b"\x01\x0b\0\0\0a\0" + EMPTY), "no body"),
        (_frame(bytes(4) + b"\x02" + PING), "section kind 2"),
        (_frame(bytes(5) + PING + 2 * (b"\x01\x0b\0\0\0a\0" + EMPTY)), "two document sequences"),
        (_frame(bytes(5) + PING + b"\x01\xff\0\0\0a\0" + EMPTY), "claims 255"),
        (_frame(bytes(5) + PING + b"\x01\x05\0\0\0a" + EMPTY), "does not end"),
        (_frame(bytes(5) + PING + b"\x01\x0a\0\0\0a\0" + EMPTY[:4]), "cut off"),
        (_frame(bytes(5) + PING + b"\x01\x06\0\0\0\xff\0"), "not UTF-8"),
        (_frame(bytes(5) + PING + b"\x01"), "cut off"),
        (_frame(bytes(5) + b"\x06" + PING[1:]), "zero byte"),
        (_frame(bytes(5) + b"\xff" + PING[1:]), "claims 255"),
        (_frame(b"", 2010), "unknown opcode 2010"),
        (_frame(b"", 2012), "cut off"),
        (_frame(b"\xdc\x07\0\0\0\0\0\0\0", 2012), "holds an OP_COMPRESSED"),
        (_frame(b"\xdd\x07\0\0\xff\xff\xff\xff\0", 2012), "claims to hold"),
        (_frame(b"\xdd\x07\0\0\0\0\xff\x7f\0", 2012), "claims to hold"),
        (_frame(b"\xdd\x07\0\0\x05\0\0\0\x09abcde", 2012), "unknown compressor"),
        (_frame(b"", 2004), "cut off"),
        (_frame(b"\0\0\0\0a.b\0", 2004), "cut off"),
        (_frame(b"\0\0\0\0a.b\0" + bytes(8) + EMPTY + EMPTY + b"\0", 2004), "longer"),
        (_frame(b"", 1), "unknown opcode 1"),
        (b"\x10\0\0\0", "header is cut off"),
        (b"\x11\0\0\0" + bytes(12), "claims 17 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_errors_describe_malformed_frames(frame, why):
    with pytest.raises(ProtocolError, match=why):
        parse_message(frame)


@given(documents, sequences_of_documents, flag_bits, st.data())
def test_damaged_frames_raise_only_protocol_errors(document, sequences, flags, data):
    frame = bytearray(
        build_msg(bson.encode(document), request_id=1, flags=flags, sequences=sequences)
    )
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        parse_message(bytes(frame)).payload.document()


def test_a_reply_must_have_one_body():
    query = _frame(b"\0\0\0\0admin.$cmd\0" + bytes(8) + PING, 2004)
    with_sequence = build_msg(PING, request_id=1, sequences={"a": []})
    for frame in (query, with_sequence):
        with pytest.raises(ProtocolError, match="one body"):
            reply_body(memoryview(frame))


@pytest.mark.parametrize("compressor", IDS.values())
@pytest.mark.parametrize("off_by", [-1, 1, -500, 500])
def test_a_size_other_than_declared_is_refused(compressor, off_by):
    data = b"abc" * 1000
    with pytest.raises(ProtocolError):
        decompress(compressor, compress(compressor, data), len(data) + off_by)


@pytest.mark.parametrize("compressor", IDS.values())
@given(data=st.binary(max_size=200), size=st.integers(0, 300))
def test_random_bytes_raise_only_protocol_errors(compressor, data, size):
    with contextlib.suppress(ProtocolError):
        assert len(decompress(compressor, data, size)) == size
