"""Detection of clients of other protocols by the first bytes that they send without TLS.

The checks and the messages are those of mongos. Without them, the router would wait for the rest of
a long message, because the first bytes of a TLS handshake look like the header of one.
"""

from typing import Final

from shard_client.error_codes import ErrorCode
from shard_client.errors import ProtocolError

NO_TLS: Final = "SSL handshake received but server is started without SSL support"
_HTTP: Final = b"GET "
_RESPONSE_TO: Final = slice(8, 12)
_NO_RESPONSE: Final = frozenset({0, -1})
"""The values of responseTo in the header of a client's first message."""

_HINT: Final = (
    b"It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n"
)
_HTTP_REPLY: Final = (
    b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_HINT), _HINT)
)


class ForeignProtocolError(ProtocolError):
    """A client that does not speak MongoDB's protocol.

    ``code`` is the error's code in the log, ``reply`` the bytes to send to the client.
    """

    def __init__(self, code: ErrorCode, message: str, reply: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.reply = reply


def check_first_header(header: memoryview) -> None:
    """Check the header of a client's first message.

    Raises:
        ForeignProtocolError: it is an HTTP request, or claims to answer another message, as the
            first bytes of a TLS handshake do.
    """
    if bytes(header[: len(_HTTP)]) == _HTTP:
        raise ForeignProtocolError(
            ErrorCode.ProtocolError,
            "Client sent an HTTP request over a native MongoDB connection",
            _HTTP_REPLY,
        )
    if int.from_bytes(header[_RESPONSE_TO], "little", signed=True) not in _NO_RESPONSE:
        raise ForeignProtocolError(ErrorCode.SSLHandshakeFailed, NO_TLS)
