"""A client's message taken apart as far as is needed to know what to do with it."""

from dataclasses import dataclass
from struct import Struct
from typing import Any

from shard_client.errors import CommandError, ProtocolError
from shard_client.frames import (
    BODY_OFFSET,
    EXHAUST_ALLOWED,
    MORE_TO_COME,
    OP_COMPRESSED,
    OP_MSG,
    OP_QUERY,
    OpMsg,
    OpQuery,
    decompress_frame,
    parse_message,
    parse_op_msg,
)

_header = Struct("<iiiiI")
_BODY_SECTION = b"\0"
_LONGEST_NAME = 128


@dataclass(slots=True)
class Request:
    """One message of a client, whole and uncompressed in ``frame``.

    ``name`` is the command's; of what is not ours nothing more is looked at. ``compressor`` is the
    number of the one that the client used, None if it used none. ``replied`` is set with the first
    reply.
    """

    frame: bytes
    request_id: int
    op_code: int
    flags: int
    name: str
    compressor: int | None = None
    query: OpQuery | None = None
    message: OpMsg | None = None
    replied: bool = False

    @property
    def wants_reply(self) -> bool:
        """Whether the client waits for an answer."""
        return not self.flags & MORE_TO_COME

    @property
    def takes_exhaust(self) -> bool:
        """Whether the client takes further answers without asking for them."""
        return bool(self.flags & EXHAUST_ALLOWED)

    def command(self) -> dict[str, Any]:
        """Return the decoded command, document sequences folded in; raises ProtocolError."""
        if self.query is not None:
            document = self.query.document()
            wrapped = document.get("$query", document.get("query"))
            return wrapped if isinstance(wrapped, dict) else document
        if self.message is None:
            self.message = parse_op_msg(self.frame)
        return self.message.document()

    def database(self, command: dict[str, Any]) -> str:
        """Return the database that the command is for; raises CommandError."""
        if self.query is not None:
            return self.query.namespace.partition(".")[0]
        try:
            database = command["$db"]
        except KeyError:
            raise CommandError(40571, "OP_MSG requests require a $db argument") from None
        if not isinstance(database, str):
            raise CommandError(40572, "$db must be a string")
        return database


def read_request(frame: bytes) -> Request:
    """Find out what a client's frame asks for.

    Raises:
        ProtocolError: it is malformed, or of an opcode that servers do not take any more.
    """
    compressor = None
    if int.from_bytes(frame[12:16], "little") == OP_COMPRESSED:
        compressor = frame[24] if len(frame) > 24 else None
        frame = decompress_frame(frame)
    if len(frame) < _header.size:
        raise ProtocolError("a message is cut off")
    _length, request_id, _response_to, op_code, flags = _header.unpack_from(frame)
    if op_code == OP_MSG:
        name = (
            _name_at(frame, BODY_OFFSET)
            if frame[BODY_OFFSET - 1 : BODY_OFFSET] == _BODY_SECTION
            else None
        )
        message = None
        if name is None:
            message = parse_op_msg(frame)
            name = _name_at(message.body, 0)
        return Request(frame, request_id, op_code, flags, name or "", compressor, None, message)
    if op_code == OP_QUERY:
        query = parse_message(frame).payload
        assert isinstance(query, OpQuery)
        document = query.document()
        wrapped = document.get("$query", document.get("query"))
        document = wrapped if isinstance(wrapped, dict) else document
        name = next(iter(document), "")
        return Request(frame, request_id, op_code, 0, name, compressor, query)
    raise ProtocolError(f"opcode {op_code} is not answered")


def _name_at(buffer: bytes, body: int) -> str | None:
    """Return the first field's name of the document at ``body``; None if there is none."""
    start = body + 5
    end = buffer.find(b"\0", start, start + _LONGEST_NAME)
    if end < 0 or not buffer[start - 1 : start].strip(b"\0"):
        return None
    return buffer[start:end].decode("utf-8", "replace")
