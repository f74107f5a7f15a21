"""The facade in the test's own loop: a listener on top of fake cursors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from router.commands.serving_process import ServingProcess
from router.server.listener import Listener
from router.tls.handshake import Handshakes
from router.upstream.upstream_mongos import UpstreamMongos
from tests.doubles.fake_cursors import FakeCursors
from tests.doubles.scripted_server import Script, ScriptedServer, scripted_server
from tests.harness.raw_client import RawClient

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
"""A command that opens a change stream."""


@dataclass
class Facade:
    """A listening facade and its parts."""

    process: ServingProcess
    listener: Listener
    cursors: FakeCursors
    port: int

    async def client(self) -> RawClient:
        return await RawClient.connect(self.port)


@asynccontextmanager
async def facade(
    upstream: UpstreamMongos | None = None, *, handshakes: Handshakes | None = None, **fields: Any
) -> AsyncIterator[Facade]:
    """Listen on a free port until the block ends; ``fields`` are fields of the process."""
    cursors = FakeCursors()
    untyped = cast(Any, cursors)
    process = ServingProcess(cursors=untyped, cluster=untyped, upstream=upstream, **fields)
    async with Listener(process, handshakes=handshakes) as listener:
        port = await listener.listen(["127.0.0.1"], 0)
        yield Facade(process, listener, cursors, port)


@asynccontextmanager
async def facade_before(
    script: Script, **fields: Any
) -> AsyncIterator[tuple[ScriptedServer, Facade, RawClient]]:
    """Put a facade before an upstream that answers by a script; yield both, and a client."""
    async with scripted_server(script) as mongos:
        upstream = UpstreamMongos([("127.0.0.1", mongos.port)])
        async with facade(upstream, **fields) as router, await router.client() as client:
            yield mongos, router, client
