"""The first bytes of clients that do not speak MongoDB's protocol."""

import ssl
from contextlib import suppress

GET = b"GET / HTTP/1.1\r\nHost: router.example:27020\r\n\r\n"
"""A browser's request."""


def client_hello() -> bytes:
    """Return what a TLS client sends first."""
    sent = ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="x")
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return sent.read()
