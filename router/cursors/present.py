"""What time it is in the cluster, for many who ask at once."""

import asyncio
from collections.abc import Iterable

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.request import StreamRequest
from router.cursors.limits import StreamLimits
from router.cursors.opening import abort_all, present_time
from shard_client.connection import Connection, format_address
from shard_client.errors import CommandError, NetworkError
from shard_client.read_preference import ReadPreference
from shard_client.retry_policy import from_network

_Asked = tuple[ReadPreference, str | None]


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

        What they write after this has returned is at that time or later. Raises CommandError,
        labelled as mongos would.
        """
        key = (ReadPreference.of(request.read_preference), request.passthrough_to_shard)
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
        shards = (await self._cluster.shards(self._limits.open_timeout)).hosts
        connections: dict[str, Connection] = {}
        try:
            time = await present_time(request, shards, self._cluster, deadline, connections)
            await self._tell(connections.values(), deadline)
            return time
        finally:
            abort_all(connections)

    async def _tell(self, connections: Iterable[Connection], deadline: float) -> None:
        """Give the newest cluster time to the shards that are behind it.

        Where no cursor is opened nothing else tells them, and what they write from now on would lie
        before the time returned.
        """
        document = self._cluster.clock.document
        behind = [each for each in connections if each.hello.get("$clusterTime") != document]
        if document is None or not behind:
            return
        left = max(0.001, deadline - asyncio.get_running_loop().time())
        timeout = min(left, self._limits.reply_timeout)

        async def tell(connection: Connection) -> None:
            command = {"ping": 1, "$clusterTime": document}
            try:
                await connection.command("admin", command, timeout=timeout)
            except NetworkError as error:
                address = format_address(connection.address)
                raise from_network(error, address) from error

        try:
            async with asyncio.TaskGroup() as group:
                for each in behind:
                    group.create_task(tell(each), name="tell the time")
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            if isinstance(first, CommandError):
                raise first.with_change_stream_label() from first
            raise
