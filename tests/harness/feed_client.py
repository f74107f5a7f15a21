"""A client of the feed, which sends and receives documents as lines."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scramp import ScramClient

from tests.harness.until import PATIENCE

Line = dict[str, Any]


class FeedClient:
    """A connection to a feed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, document: object) -> None:
        """Send a document as one line."""
        self._writer.write(json.dumps(document).encode() + b"\n")

    async def receive(self) -> Line | None:
        """Return the next line; None at the end."""
        async with asyncio.timeout(PATIENCE):
            try:
                line = await self._reader.readline()
            except ConnectionError:
                return None
        return json.loads(line) if line else None

    async def log_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Line:
        """Log in; return the last line."""
        scram = ScramClient([mechanism], user, password)
        first = {"mechanism": mechanism, "authSource": "admin"}
        self.send({"login": {**first, "payload": scram.get_client_first()}})
        answer = await self.receive()
        assert answer is not None
        if "error" in answer:
            return answer
        assert not answer["login"]["done"]
        scram.set_server_first(answer["login"]["payload"])
        self.send({"login": {"payload": scram.get_client_final()}})
        answer = await self.receive()
        assert answer is not None
        if "login" in answer:
            scram.set_server_final(answer["login"]["payload"])
        return answer


@asynccontextmanager
async def feed(port: int | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[FeedClient]:
    """Connect to a feed on this machine, by TLS if a context is given."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield FeedClient(reader, writer)
    finally:
        writer.close()


async def refusal(connected: FeedClient) -> int:
    """Return the code of the error with which the feed ends."""
    line = await connected.receive()
    assert line is not None
    assert await connected.receive() is None
    code = line["error"]["code"]
    assert isinstance(code, int)
    return code
