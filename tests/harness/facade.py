"""The facade in the test's own loop: a listener on top of fake cursors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from router.catalog.upstream import UpstreamMongos
from router.commands.call import Node
from router.server.listener import Listener
from router.tls.handshake import Handshakes
from tests.doubles.fake_cursors import FakeCursors
from tests.harness.raw_client import RawClient


@dataclass
class Facade:
    """A listening facade and its parts."""

    node: Node
    listener: Listener
    cursors: FakeCursors
    port: int

    async def client(self) -> RawClient:
        return await RawClient.connect(self.port)


@asynccontextmanager
async def facade(
    upstream: UpstreamMongos | None = None, *, handshakes: Handshakes | None = None, **fields: Any
) -> AsyncIterator[Facade]:
    """Listen on a free port until the block ends; ``fields`` are fields of the Node."""
    cursors = FakeCursors()
    untyped = cast(Any, cursors)
    node = Node(clock=cursors.clock, cursors=untyped, cluster=untyped, upstream=upstream, **fields)
    async with Listener(node, handshakes=handshakes) as listener:
        port = await listener.listen(["127.0.0.1"], 0)
        yield Facade(node, listener, cursors, port)
