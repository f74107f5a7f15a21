"""What time it is in the cluster, for many who ask at once."""

import asyncio

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.request import StreamRequest
from router.cursors.limits import StreamLimits
from router.cursors.opening import abort_all, present_time
from shard_client.connection import Connection

_Asked = tuple[str, str | None]


class Present:
    """Asks the shards for their times; those who come while they are asked share the next answer.

    ``await close()`` ends it.
    """

    def __init__(self, cluster: Cluster, limits: StreamLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._asking: dict[_Asked, asyncio.Task[Timestamp]] = {}

    async def time(self, request: StreamRequest) -> Timestamp:
        """Return a time after all that the request's shards wrote before this was called.

        Raises CommandError, labelled as mongos would.
        """
        preference = request.read_preference or {}
        key = (str(preference.get("mode")), request.passthrough_to_shard)
        running = self._asking.get(key)
        if running is not None:
            # Its answer may come from before we asked.
            await asyncio.wait((running,))
        task = self._asking.get(key)
        if task is None or task is running:
            task = asyncio.get_running_loop().create_task(self._ask(request), name="ask the time")
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what is being asked."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _asked(self, key: _Asked, task: asyncio.Task[Timestamp]) -> None:
        if self._asking.get(key) is task:
            del self._asking[key]
        if not task.cancelled():
            task.exception()  # whoever waits gets it; there may be nobody any more

    async def _ask(self, request: StreamRequest) -> Timestamp:
        deadline = asyncio.get_running_loop().time() + self._limits.open_timeout
        shards, _ = await self._cluster.shards(self._limits.open_timeout)
        connections: dict[str, Connection] = {}
        try:
            return await present_time(request, shards, self._cluster, deadline, connections)
        finally:
            abort_all(connections)
