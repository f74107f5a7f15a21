"""Parse and build frames of the MongoDB wire protocol, without I/O.

A frame is one whole message: the 16-byte header and its content. Source:
docs/protocol.md#wire-protocol.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import google_crc32c

from shard_client.errors import ProtocolError
from shard_client.wire.bson_slices import document_end, read_cstring
from shard_client.wire.compression import compress, decompress
from shard_client.wire.documents import decode, encode

OP_REPLY, OP_QUERY, OP_COMPRESSED, OP_MSG = 1, 2004, 2012, 2013

HEADER_SIZE = 16
MAX_MESSAGE_SIZE = 48_000_000
MAX_DOCUMENT_SIZE = 16_777_216
MAX_REPLY_DOCUMENT_SIZE = MAX_DOCUMENT_SIZE + 16_384
MAX_WRITE_BATCH_SIZE = 100_000

CHECKSUM_PRESENT, MORE_TO_COME, EXHAUST_ALLOWED = 1, 2, 1 << 16
_UNKNOWN_REQUIRED_FLAGS = 0xFFFF & ~(CHECKSUM_PRESENT | MORE_TO_COME)
_CHECKSUM_SIZE = 4

_header = Struct("<iiii")
_int32 = Struct("<i")
_uint32 = Struct("<I")
_op_msg = Struct("<iiiiIB")
_reply = Struct("<iiiiIBi")
_op_compressed = Struct("<iiiiiiB")
_op_query = Struct("<iiiii")
_SKIP_AND_BATCH_SIZE = 8
_op_reply = Struct("<iiiiiqii")
_BODY, _SEQUENCE = 0, 1
_MOST_SECTIONS = 100

BODY_OFFSET = _op_msg.size
"""Offset of the body document in an OP_MSG frame whose first section is the body."""


@dataclass(frozen=True, slots=True)
class OpMsg:
    """An OP_MSG: flag bits, the raw BSON body (kind 0), the document sequences (kind 1)."""

    flags: int
    body: bytes
    sequences: dict[str, list[bytes]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the decoded command with its document sequences folded in as arrays.

        Raises ProtocolError if a document is not valid BSON, or if a body field has the name of a
        sequence.
        """
        document = decode(self.body)
        for name, documents in self.sequences.items():
            if name in document:
                raise ProtocolError(f"field {name!r} is both in the body and a document sequence")
            document[name] = [decode(document) for document in documents]
        return document


@dataclass(frozen=True, slots=True)
class OpQuery:
    """An OP_QUERY: a namespace and one raw query document."""

    namespace: str
    query: bytes

    def document(self) -> dict[str, Any]:
        """Return the decoded query; raises ProtocolError if it is not valid BSON."""
        return decode(self.query)


@dataclass(frozen=True, slots=True)
class Message:
    """One parsed frame; ``op_code`` is the payload's, ``compressor`` a number, None if plain."""

    request_id: int
    response_to: int
    op_code: int
    payload: OpMsg | OpQuery
    compressor: int | None = None


def frame_length(buffer: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Return the length in bytes of the frame at ``offset``; reads the frame's first 4 bytes.

    Raises ProtocolError if it is below 16 or above MAX_MESSAGE_SIZE.
    """
    (length,) = _int32.unpack_from(buffer, offset)
    if not HEADER_SIZE <= length <= MAX_MESSAGE_SIZE:
        raise ProtocolError(f"a message claims {length} bytes")
    return int(length)


def parse_message(frame: bytes | memoryview) -> Message:
    """Parse one whole frame, decompressing it if necessary.

    Raises ProtocolError if the frame is malformed or has an unknown opcode.
    """
    frame = bytes(frame)
    request_id, response_to, op_code = _check_header(frame)
    compressor = None
    if op_code == OP_COMPRESSED:
        compressor = frame[24] if len(frame) > 24 else None
        frame = decompress_frame(frame)
        request_id, response_to, op_code = _check_header(frame)
    payload: OpMsg | OpQuery
    if op_code == OP_MSG:
        payload = parse_op_msg(frame)
    elif op_code == OP_QUERY:
        payload = parse_op_query(frame)
    else:
        raise ProtocolError(f"unknown opcode {op_code}")
    return Message(request_id, response_to, op_code, payload, compressor)


def parse_op_msg(frame: bytes) -> OpMsg:
    """Parse an OP_MSG frame (header included, not compressed); raises ProtocolError."""
    (flags,) = _uint32.unpack_from(frame, HEADER_SIZE) if len(frame) >= _op_msg.size else (0,)
    body = None
    sequences: dict[str, list[bytes]] = {}
    for kind, start, end in iter_sections(frame):
        if kind == _BODY:
            body = frame[start:end]
        else:
            name, documents = _parse_sequence(frame, start, end)
            if name in sequences:
                raise ProtocolError(f"an OP_MSG has two document sequences {name!r}")
            sequences[name] = documents
    assert body is not None
    return OpMsg(flags, body, sequences)


def find_body(frame: bytes) -> tuple[int, int]:
    """Return the start and end offsets of the body document of an OP_MSG frame.

    Flags, checksum and section sizes are checked. Documents are not read, so the time does not
    depend on the frame's size unless there is a checksum. Raises ProtocolError.
    """
    bodies = [(start, end) for kind, start, end in iter_sections(frame) if kind == _BODY]
    return bodies[0]


def iter_sections(frame: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield kind, start and end of each section of an OP_MSG frame (header included).

    The start is the offset of the content, after the kind byte. Raises ProtocolError on unknown
    flags or kinds, a wrong checksum, sizes that do not fit, a second body, too many sections, and,
    after the last section, if there is no body.
    """
    end = len(frame)
    if end < _op_msg.size:
        raise ProtocolError("an OP_MSG is cut off")
    (flags,) = _uint32.unpack_from(frame, HEADER_SIZE)
    if flags & _UNKNOWN_REQUIRED_FLAGS:
        raise ProtocolError(f"unknown OP_MSG flags {flags:#x}")
    if flags & CHECKSUM_PRESENT:
        end -= _CHECKSUM_SIZE
        (checksum,) = _uint32.unpack_from(frame, end)
        if google_crc32c.value(frame[:end]) != checksum:
            raise ProtocolError("an OP_MSG's checksum does not match")
    has_body = False
    position = HEADER_SIZE + 4
    for _ in range(_MOST_SECTIONS):
        if position >= end:
            break
        kind = frame[position]
        start = position + 1
        if kind == _BODY:
            if has_body:
                raise ProtocolError("an OP_MSG has two bodies")
            has_body = True
            position = document_end(frame, start, end)
        elif kind == _SEQUENCE:
            position = _sequence_end(frame, start, end)
        else:
            raise ProtocolError(f"unknown OP_MSG section kind {kind}")
        yield kind, start, position
    if position < end:
        raise ProtocolError(f"an OP_MSG has more than {_MOST_SECTIONS} sections")
    if not has_body:
        raise ProtocolError("an OP_MSG has no body")


def reply_body(frame: memoryview, response_to: int | None = None) -> bytes:
    """Return the raw body of a reply in an OP_MSG frame of any form, usually with a single copy.

    Raises ProtocolError if the frame does not respond to the request ``response_to``, if given, is
    not an OP_MSG, is malformed, or has document sequences.
    """
    if len(frame) >= _reply.size:
        length, _, responded, op_code, flags, kind, size = _reply.unpack_from(frame)
        plain = op_code == OP_MSG and not flags & 0xFFFF & ~MORE_TO_COME and kind == _BODY
        if plain and length == len(frame) == size + BODY_OFFSET and not frame[-1]:
            _check_response(responded, response_to)
            return bytes(frame[BODY_OFFSET:])
    message = parse_message(frame)
    _check_response(message.response_to, response_to)
    if not isinstance(message.payload, OpMsg) or message.payload.sequences:
        raise ProtocolError("a reply is not an OP_MSG with one body")
    return message.payload.body


def _check_response(responded: int, response_to: int | None) -> None:
    if response_to is not None and responded != response_to:
        raise ProtocolError(f"a reply to request {responded}, not {response_to}")


def build_msg(
    body: bytes,
    *,
    request_id: int,
    response_to: int = 0,
    flags: int = 0,
    sequences: Mapping[str, Sequence[bytes]] | None = None,
) -> bytes:
    """Return an OP_MSG frame around the raw BSON ``body``, with a checksum if set in ``flags``."""
    sections = [body]
    for name, documents in (sequences or {}).items():
        content = b"".join((name.encode(), b"\0", *documents))
        sections += (bytes((_SEQUENCE,)), _int32.pack(4 + len(content)), content)
    size = sum(map(len, sections)) + (_CHECKSUM_SIZE if flags & CHECKSUM_PRESENT else 0)
    frame = b"".join((msg_header(size, request_id, response_to, flags), *sections))
    return frame + _uint32.pack(google_crc32c.value(frame)) if flags & CHECKSUM_PRESENT else frame


def msg_header(size: int, request_id: int, response_to: int, flags: int = 0) -> bytes:
    """Return what an OP_MSG frame has before its body; ``size`` bytes follow."""
    return _op_msg.pack(_op_msg.size + size, request_id, response_to, OP_MSG, flags, _BODY)


def with_ids(frame: bytes, *, request_id: int, response_to: int) -> list[bytes | memoryview]:
    """Return the frame, as parts, with new ids in its header; a checksum is recomputed."""
    length, _, _, op_code = _header.unpack_from(frame)
    head = _header.pack(length, request_id, response_to, op_code)
    if op_code == OP_MSG and frame[HEADER_SIZE] & CHECKSUM_PRESENT:
        content = frame[HEADER_SIZE:-_CHECKSUM_SIZE]
        checksum = google_crc32c.extend(google_crc32c.value(head), content)
        return [head, content, _uint32.pack(checksum)]
    return [head, memoryview(frame)[HEADER_SIZE:]]


def with_field(frame: bytes, name: str, value: Any) -> bytes:
    """Return an OP_MSG, whose first section is the body, with one more field at the body's end.

    ``with_ids`` then corrects a checksum.
    """
    added = encode({name: value})[4:-1]
    (size,) = _int32.unpack_from(frame, BODY_OFFSET)
    end = BODY_OFFSET + size - 1
    head = _int32.pack(len(frame) + len(added)) + frame[4:BODY_OFFSET]
    body = _int32.pack(size + len(added)) + frame[BODY_OFFSET + 4 : end]
    return b"".join((head, body, added, frame[end:]))


def more_to_come(frame: bytes) -> bool:
    """Return whether this is an OP_MSG with moreToCome.

    More replies follow such a reply; such a request gets no reply.
    """
    return _int32.unpack_from(frame, 12)[0] == OP_MSG and bool(
        len(frame) > HEADER_SIZE and frame[HEADER_SIZE] & MORE_TO_COME
    )


def compress_frame(frame: bytes, compressor: int) -> bytes:
    """Return a whole frame as OP_COMPRESSED; ``compressor`` is an available compressor's number.

    The caller checks whether the command may be compressed (compression.NEVER_COMPRESSED).
    """
    _, request_id, response_to, op_code = _header.unpack_from(frame)
    size = len(frame) - HEADER_SIZE
    compressed = compress(compressor, frame[HEADER_SIZE:])
    length = _op_compressed.size + len(compressed)
    head = _op_compressed.pack(
        length, request_id, response_to, OP_COMPRESSED, op_code, size, compressor
    )
    return head + compressed


def decompress_frame(frame: bytes) -> bytes:
    """Return the frame inside an OP_COMPRESSED frame; raises ProtocolError."""
    if len(frame) < _op_compressed.size:
        raise ProtocolError("an OP_COMPRESSED is cut off")
    _, request_id, response_to, _, op_code, size, compressor = _op_compressed.unpack_from(frame)
    if not 0 <= size <= MAX_MESSAGE_SIZE - HEADER_SIZE:
        raise ProtocolError(f"an OP_COMPRESSED claims to hold {size} bytes")
    if op_code == OP_COMPRESSED:
        raise ProtocolError("an OP_COMPRESSED holds an OP_COMPRESSED")
    content = decompress(compressor, memoryview(frame)[_op_compressed.size :], size)
    head = _header.pack(HEADER_SIZE + size, request_id, response_to, op_code)
    return b"".join((head, content))


def _check_header(frame: bytes) -> tuple[int, int, int]:
    """Return requestID, responseTo and opCode; raises ProtocolError if the length is wrong."""
    if len(frame) < HEADER_SIZE:
        raise ProtocolError("a header is cut off")
    length, request_id, response_to, op_code = _header.unpack_from(frame)
    if length != len(frame):
        raise ProtocolError(f"a message claims {length} bytes and has {len(frame)}")
    return request_id, response_to, op_code


def _sequence_end(frame: bytes, start: int, limit: int) -> int:
    """Return the end offset of the section of kind 1 at ``start``."""
    if limit - start < 4:
        raise ProtocolError("a document sequence is cut off")
    (size,) = _int32.unpack_from(frame, start)
    end = start + int(size)
    if size < 5 or end > limit:
        raise ProtocolError(f"a document sequence claims {size} bytes of {limit - start}")
    return end


def _parse_sequence(frame: bytes, start: int, end: int) -> tuple[str, list[bytes]]:
    """Return name and documents of the section of kind 1 from ``start`` to ``end``."""
    name, position = read_cstring(frame, start + 4, end)
    documents = []
    while position < end:
        document = document_end(frame, position, end)
        documents.append(frame[position:document])
        position = document
    return name, documents


# How a server answers the first hello of old drivers.


def parse_op_query(frame: bytes) -> OpQuery:
    """Parse an OP_QUERY frame; raises ProtocolError."""
    end = len(frame)
    if end < _op_query.size:
        raise ProtocolError("an OP_QUERY is cut off")
    namespace, position = read_cstring(frame, _op_query.size, end)
    start = position + _SKIP_AND_BATCH_SIZE
    query_end = document_end(frame, start, end)
    if query_end < end and document_end(frame, query_end, end) != end:
        raise ProtocolError("an OP_QUERY is longer than its documents")
    return OpQuery(namespace, frame[start:query_end])


def build_op_reply(document: bytes, *, request_id: int, response_to: int, flags: int = 8) -> bytes:
    """Return an OP_REPLY frame that answers an OP_QUERY with one raw document.

    ``flags`` are 8, awaitCapable, for a command, and 2, queryFailure, for another query.
    """
    length = _op_reply.size + len(document)
    head = _op_reply.pack(length, request_id, response_to, OP_REPLY, flags, 0, 0, 1)
    return head + document
