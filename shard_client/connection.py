"""One connection to a server: a request at a time, raw or decoded."""

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

Address = tuple[str, int]
"""Host and port."""


def parse_address(text: str, *, default_port: int = 27017) -> Address:
    """Parse ``host``, ``host:port`` or ``[ipv6]:port``; raises ValueError."""
    raise NotImplementedError


def format_address(address: Address) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    raise NotImplementedError


class Connection:
    """A connection that has said hello. One request is in flight at a time.

    ``hello`` is the server's decoded answer, ``address`` what was connected to. When the connection
    is cut, whoever waits gets NetworkError; a request that is cancelled or times out closes the
    connection, since its answer may still come.
    """

    address: Address
    hello: dict[str, Any]

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        compressors: Sequence[str] = (),
        app_name: str = "mergerouter",
    ) -> Self:
        """Connect and say hello within ``timeout`` seconds.

        ``compressors`` are offered in order of preference. Raises NetworkError, CommandError.
        """
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """True once the connection is closed or was cut."""
        raise NotImplementedError

    async def command(
        self, database: str, command: Mapping[str, Any], *, timeout: float | None
    ) -> dict[str, Any]:
        """Run ``command`` on ``database`` and return the decoded reply.

        ``timeout`` in seconds. Raises CommandError if the reply is not ok, NetworkError.
        """
        raise NotImplementedError

    async def command_raw(self, body: bytes, *, timeout: float | None) -> bytes:
        """Send the raw command (with its ``$db``) and return the raw body of the reply.

        ``timeout`` in seconds. Raises NetworkError; the reply may say that the command failed.
        """
        raise NotImplementedError

    def exchange(self, message: bytes, *, timeout: float | None = None) -> AsyncIterator[bytes]:
        """Forward one whole uncompressed frame under a request id of our own; yield the replies.

        Whole frames, not compressed, with the server's own ids: the caller rewrites responseTo.
        Ends with the first reply without moreToCome; at once if the request itself has it.
        ``timeout`` is the seconds to wait for each reply. Raises NetworkError.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close the connection and wait until it is closed."""
        raise NotImplementedError

    def abort(self) -> None:
        """Cut the connection at once."""
        raise NotImplementedError
