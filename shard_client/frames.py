"""Frames of the MongoDB wire protocol: parsed and built, no I/O.

A frame is one whole message: the 16-byte header and what follows. Source: docs/protocol.md,
section 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import bson
import google_crc32c
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError

from shard_client.bson_slices import document_end
from shard_client.errors import ProtocolError

OP_REPLY, OP_QUERY, OP_COMPRESSED, OP_MSG = 1, 2004, 2012, 2013

HEADER_SIZE = 16
MAX_MESSAGE_SIZE = 48_000_000
MAX_DOCUMENT_SIZE = 16_777_216
MAX_REPLY_DOCUMENT_SIZE = MAX_DOCUMENT_SIZE + 16_384
MAX_WRITE_BATCH_SIZE = 100_000

CHECKSUM_PRESENT, MORE_TO_COME, EXHAUST_ALLOWED = 1, 2, 1 << 16
_UNKNOWN_REQUIRED_FLAGS = 0xFFFF & ~(CHECKSUM_PRESENT | MORE_TO_COME)

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""How commands and replies are decoded: plain dicts in order, any date that BSON can hold."""

_header = Struct("<iiii")
_int32 = Struct("<i")
_uint32 = Struct("<I")
_msg_prefix = Struct("<iiiiIB")
BODY_OFFSET = _msg_prefix.size
"""Where the body document of an OP_MSG frame begins whose first section is the body."""


@dataclass(frozen=True, slots=True)
class OpMsg:
    """An OP_MSG: flag bits, the raw BSON body (kind 0), the document sequences (kind 1)."""

    flags: int
    body: bytes
    sequences: dict[str, list[bytes]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the decoded command with its document sequences folded in as arrays.

        Raises ProtocolError if a document is not valid BSON.
        """
        document = decode(self.body)
        for name, documents in self.sequences.items():
            document[name] = [decode(each) for each in documents]
        return document


@dataclass(frozen=True, slots=True)
class OpQuery:
    """An OP_QUERY, as old drivers send for their first hello."""

    flags: int
    namespace: str
    skip: int
    batch_size: int
    query: bytes
    fields: bytes | None = None

    def document(self) -> dict[str, Any]:
        """Return the decoded query; raises ProtocolError if it is not valid BSON."""
        return decode(self.query)


@dataclass(frozen=True, slots=True)
class OpReply:
    """An OP_REPLY, the answer to an OP_QUERY."""

    flags: int
    cursor_id: int
    starting_from: int
    documents: list[bytes]


@dataclass(frozen=True, slots=True)
class Message:
    """One parsed frame. ``op_code`` is the payload's; ``compressor_id`` tells how it came."""

    request_id: int
    response_to: int
    op_code: int
    payload: OpMsg | OpQuery | OpReply
    compressor_id: int | None = None


def decode(document: bytes) -> dict[str, Any]:
    """Decode one BSON document; raises ProtocolError if it is not valid."""
    raise NotImplementedError


def encode(document: Mapping[str, Any]) -> bytes:
    """Encode one document, fields in order."""
    return bson.encode(document, codec_options=CODEC)


def frame_length(header: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Return the length in bytes of the frame at ``offset``, of which 4 bytes must be there.

    Raises ProtocolError if it is below 16 or above MAX_MESSAGE_SIZE.
    """
    raise NotImplementedError


def parse_message(frame: bytes | memoryview) -> Message:
    """Parse one whole frame, decompressing it if need be.

    Raises ProtocolError on everything malformed, an unknown opcode included.
    """
    raise NotImplementedError


def parse_op_msg(frame: bytes) -> OpMsg:
    """Parse an OP_MSG frame (header included, not compressed). Raises ProtocolError."""
    raise NotImplementedError


def build_msg(
    body: bytes,
    *,
    request_id: int,
    response_to: int = 0,
    flags: int = 0,
    sequences: Mapping[str, Sequence[bytes]] | None = None,
) -> bytes:
    """Return an OP_MSG frame around the raw BSON ``body``; a checksum when ``flags`` ask for it."""
    raise NotImplementedError


def build_reply_parts(
    parts: list[bytes],
    *,
    request_id: int,
    response_to: int,
    flags: int = 0,
    size: int | None = None,
) -> list[bytes]:
    """Put an OP_MSG header before the ``parts`` of a body, to be joined or written in one go.

    ``size`` is the bytes of all parts, if the caller knows it. No checksum is made.
    """
    raise NotImplementedError


def build_op_reply(document: bytes, *, request_id: int, response_to: int) -> bytes:
    """Return an OP_REPLY frame that answers an OP_QUERY with one raw document."""
    raise NotImplementedError


def build_op_query(namespace: str, query: bytes, *, request_id: int) -> bytes:
    """Return an OP_QUERY frame for one document, as the first hello of old drivers."""
    raise NotImplementedError


def with_ids(frame: bytes, *, request_id: int, response_to: int) -> bytes:
    """Return the frame with other ids in its header (the checksum, if any, made anew)."""
    raise NotImplementedError
