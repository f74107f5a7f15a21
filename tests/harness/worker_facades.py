"""The facades of several workers in the test's own loop, each with its own fake cursors."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bson.objectid import ObjectId

from router.catalog.upstream import UpstreamMongos
from router.commands.topology_version import TopologyVersion
from router.peers.cursor_ids import CursorIds
from router.peers.peers import Peers, private_address
from router.server.listener import Listener
from tests.harness.facade import Facade, facade
from tests.harness.hosted import hosted

MARK = 0x1234


@asynccontextmanager
async def worker_facades(
    count: int = 2, upstream: UpstreamMongos | None = None, **makers: Any
) -> AsyncIterator[list[Facade]]:
    """Listen on one port for each worker until the block ends.

    ``makers`` create each Node's other fields. Closing its ``private`` listener ends a worker.
    """
    process_id = ObjectId()
    async with AsyncExitStack() as owned:
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="workers-")))
        workers = []
        for number in range(1, count + 1):
            ids = CursorIds(number, MARK)
            peers = Peers(ids, number, count, folder, lambda **message: None)
            owned.callback(peers.close)
            fields = {name: make() for name, make in makers.items()}
            worker = await owned.enter_async_context(
                facade(upstream, peers=peers, topology=TopologyVersion(process_id), **fields)
            )
            worker.cursors.new_id = ids.new_id
            worker.private = await owned.enter_async_context(AsyncExitStack())
            listener = await worker.private.enter_async_context(
                hosted(Listener(worker.node, for_workers=True))
            )
            await listener.listen_privately(private_address(folder, number))
            workers.append(worker)
        yield workers
