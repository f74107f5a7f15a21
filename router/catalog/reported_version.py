"""The version that the router reports: the lowest among the servers behind it.

Drivers choose their messages by the wire version in ``hello``. During a cluster's upgrade the
servers differ; a mongos is upgraded last, so clients can rely on the lowest version.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import structlog

from router.catalog.cluster import Cluster
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.errors import CommandError, NetworkError

log = structlog.get_logger(component="SHARDING")

_OURS = "mergerouter"


def _mongos_build(version: str, version_array: list[int], git_version: str) -> dict[str, Any]:
    return {
        "version": version,
        "gitVersion": git_version,
        "modules": [],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": version_array,
        "openssl": {"running": "disabled", "compiled": "disabled"},
        "bits": 64,
        "debug": False,
        "maxBsonObjectSize": 16777216,
    }


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The version that drivers see: the cluster's own, so that they use its features."""

    build_info: Mapping[str, Any] = field(
        default_factory=lambda: _mongos_build("6.0.0", [6, 0, 0, 0], _OURS)
    )
    max_wire_version: int = 17

    @property
    def version(self) -> str:
        """The version as text, such as ``6.0.15``."""
        return str(self.build_info["version"])

    @property
    def order(self) -> tuple[int, list[int]]:
        """The sort key of versions: the wire version, then the version's numbers."""
        return self.max_wire_version, list(self.build_info["versionArray"])

    @classmethod
    def of_server(cls, hello: Mapping[str, Any], build_info: Mapping[str, Any]) -> "ServerIdentity":
        """Return the identity of a server of the cluster, from its hello and buildInfo."""
        version = str(build_info.get("version", "6.0.0"))
        numbers = [int(part) for part in version.split("-")[0].split(".") if part.isdigit()]
        array = build_info.get("versionArray") or [*numbers, 0, 0, 0, 0][:4]
        return cls(
            build_info=_mongos_build(
                version, list(array), str(build_info.get("gitVersion", _OURS))
            ),
            max_wire_version=int(hello.get("maxWireVersion", 17)),
        )


_UPSTREAM = ""


@dataclass(eq=False, slots=True)
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

    cluster: Cluster
    upstream: UpstreamMongos | None
    changed: Callable[[ServerIdentity], None]
    ask_timeout: float = 2.0
    retry_pause: float = 1.0
    refresh_pause: float = 60.0
    _known: dict[str, ServerIdentity] = field(default_factory=dict)
    _told: ServerIdentity | None = None

    async def keep_current(self, known: asyncio.Event, *, once: bool = False) -> None:
        """Ask all servers, often until one has answered, which sets ``known``, then each minute.

        They are asked immediately when a new connection reports a changed version. With ``once``
        it ends with the first answer.
        """
        while True:
            try:
                await self._ask_all()
                known.set()
            except (CommandError, NetworkError) as error:
                report = log.debug if known.is_set() else log.warning
                report("No server of the cluster answers; trying on", error=str(error))
            except Exception:  # the reading of versions must continue
                log.exception("Unexpected error")
            if once and known.is_set():
                return
            pause = self.refresh_pause if known.is_set() else self.retry_pause
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.cluster.versions.changed.wait()
            self.cluster.versions.changed.clear()

    async def _ask_all(self) -> None:
        """Update ``_known``; raises the last failure if no version is known."""
        shards = (await self.cluster.shards()).hosts
        targets: dict[str, str | None] = {self.cluster.catalog: None, **shards}
        if self.upstream is not None:
            targets[_UPSTREAM] = None
        failures = await asyncio.gather(*starmap(self._ask, targets.items()))
        self._known = {target: self._known[target] for target in targets if target in self._known}
        if not self._known:
            raise next(filter(None, failures))
        lowest = min(self._known.values(), key=lambda each: each.order)
        if lowest != self._told:
            self._told = lowest
            self.changed(lowest)
            log.info("Speaking for a cluster", version=lowest.version)

    async def _ask(self, target: str, host: str | None) -> NetworkError | None:
        """Update a server's version in ``_known``; return the failure if it tells none in time."""
        try:
            upstream = self.upstream if target == _UPSTREAM else None
            lent = self.cluster.lend(target, host) if upstream is None else upstream.lend()
            async with asyncio.timeout(self.ask_timeout), lent as connection:
                build_info = await connection.command(
                    "admin", {"buildInfo": 1}, timeout=self.ask_timeout
                )
                self._known[target] = ServerIdentity.of_server(connection.hello, build_info)
                return None
        except (CommandError, NetworkError, TimeoutError) as error:
            failure = NetworkError(f"{target or 'the upstream'} reports no version: {error!r}")
            log.debug(str(failure))
            return failure
