"""The version that the router reports: the lowest among the servers behind it.

Drivers choose their messages by the wire version in ``hello``. During a cluster's upgrade the
servers differ; a mongos is upgraded last, so clients can rely on the lowest version.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from router.catalog.cluster import CONFIG, Cluster
from router.commands.server_identity import ServerIdentity
from router.upstream_mongos import UpstreamMongos
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.wire.connection import Connection

log = structlog.get_logger()

_RETRY_PAUSE = 1.0
_REFRESH_PAUSE = 60.0
_ASK_TIMEOUT = 2.0
_UPSTREAM = ""

_Failure = (CommandError, NetworkError, ProtocolError)


class ClusterVersion:
    """Polls the versions of the shards, the config server and the upstream.

    A server that does not answer counts with its last known version, so that a restart does not
    briefly raise the version.

    Args:
        cluster: the shards and the config server.
        upstream: the upstream, if there is one.
        changed: called with the lowest version whenever it changes.
        ask_timeout: seconds for which a server may take to answer.
        retry_pause: seconds until the next try if no server has answered.
        refresh_pause: seconds after which all servers are asked again.
    """

    def __init__(
        self,
        cluster: Cluster,
        upstream: UpstreamMongos | None,
        changed: Callable[[ServerIdentity], None],
        *,
        ask_timeout: float = _ASK_TIMEOUT,
        retry_pause: float = _RETRY_PAUSE,
        refresh_pause: float = _REFRESH_PAUSE,
    ) -> None:
        self._ask_timeout = ask_timeout
        self._retry_pause = retry_pause
        self._refresh_pause = refresh_pause
        self._cluster = cluster
        self._upstream = upstream
        self._changed = changed
        self._known: dict[str, ServerIdentity] = {}
        self._told: ServerIdentity | None = None

    async def read(self) -> None:
        """Try until at least one server has answered."""
        while True:
            try:
                await self._ask_all()
            except _Failure as error:
                log.warning(
                    "No server of the cluster answers; trying on",
                    component="SHARDING",
                    error=str(error),
                )
                await asyncio.sleep(self._retry_pause)
            else:
                return

    async def keep_current(self) -> None:
        """Ask each minute, and immediately when a new connection reports a changed version."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_pause):
                    await self._cluster.versions_changed.wait()
            self._cluster.versions_changed.clear()
            try:
                await self._ask_all()
            except _Failure as error:
                log.debug("Cannot read versions", component="SHARDING", error=str(error))

    async def _ask_all(self) -> None:
        """Update ``_known``; raises the last failure if no version is known."""
        shards = (await self._cluster.shards()).hosts
        targets = [*shards, CONFIG]
        if self._upstream is not None:
            targets.append(_UPSTREAM)
        asking = {
            asyncio.create_task(self._ask(target, shards.get(target))): target for target in targets
        }
        failure: Exception | None = None
        try:
            await asyncio.wait(asking, timeout=self._ask_timeout)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)
        for task, target in asking.items():
            error = TimeoutError() if task.cancelled() else task.exception()
            if error is None:
                self._known[target] = task.result()
                continue
            if not isinstance(error, (*_Failure, TimeoutError)):
                raise error
            failure = NetworkError(f"{target or 'the upstream'} reports no version: {error!r}")
            log.debug(str(failure), component="SHARDING")
        for gone in self._known.keys() - set(targets):
            del self._known[gone]
        if not self._known:
            assert failure is not None
            raise failure
        lowest = min(self._known.values(), key=lambda each: each.order)
        if lowest != self._told:
            self._told = lowest
            self._changed(lowest)
            log.info("Speaking for a cluster", component="SHARDING", version=lowest.version)

    async def _ask(self, target: str, host: str | None) -> ServerIdentity:
        if target == _UPSTREAM:
            assert self._upstream is not None
            connection = await self._upstream.connect()
            try:
                return await self._version_of(connection)
            finally:
                await connection.close()
        connection = await self._cluster.connect(target, host)
        try:
            return await self._version_of(connection)
        finally:
            self._cluster.release(connection)

    async def _version_of(self, connection: Connection) -> ServerIdentity:
        command = {"buildInfo": 1}
        build_info = await connection.command("admin", command, timeout=self._ask_timeout)
        return ServerIdentity.of_server(connection.hello, build_info)
