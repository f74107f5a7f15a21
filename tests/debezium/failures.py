"""Debezium while routers and engines are killed, and its offsets move between mongos and router."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from tests.debezium.comparison import without_repeats
from tests.debezium.engine import DebeziumEngine, Message
from tests.debezium.workload import Workload
from tests.harness.clusters import RealCluster
from tests.harness.routers import RouterProcess, start_router

_PARTS = 5
_QUICKLY = {"errors.retry.delay.initial.ms": "100", "retriable.restart.connector.wait.ms": "500"}


def messages_with_failures(
    cluster: RealCluster,
    folder: Path,
    properties: Mapping[str, str],
    workload: Workload,
    chance: Random,
    steps: int,
    is_last: Callable[[Message], bool],
) -> list[Message]:
    """Run a workload, with a failure or a move after each part; return each message once.

    The engines go on from one file of offsets, through a mongos or through a router.
    """
    offsets = {"offset.storage.file.filename": str(folder / "offsets"), **_QUICKLY}
    run = _Run(cluster, folder, {**properties, **offsets})
    try:
        for _ in range(_PARTS):
            workload.run(steps // _PARTS)
            chance.choice((run.kill_engine, run.move_engine, run.kill_router, run.stop_router))()
        workload.finish()
        return run.messages_until(is_last)
    finally:
        run.close()


class _Run:
    """One engine at a time, and a router that is started again on its port."""

    def __init__(self, cluster: RealCluster, folder: Path, properties: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._folder = folder
        self._properties = properties
        self._router = self._start_router(0)
        self._through_router = True
        self._parts: list[list[Message]] = []
        self._engine = self._start_engine()

    def kill_engine(self) -> None:
        """End the engine as a power cut would, and start the next."""
        self._engine.kill()
        self._next_engine()

    def move_engine(self) -> None:
        """Close the engine, and start the next through the other of mongos and router."""
        self._engine.close()
        self._through_router = not self._through_router
        self._next_engine()

    def kill_router(self) -> None:
        """End the router as a power cut would, and start it again."""
        self._router.process.kill()
        self.stop_router()

    def stop_router(self) -> None:
        """Stop the router in order, and start it again."""
        port = self._router.port
        self._router.stop()
        self._router = self._start_router(port)

    def messages_until(self, is_last: Callable[[Message], bool]) -> list[Message]:
        """Return the messages of all engines, each once, up to one that `is_last` accepts."""
        return without_repeats([*self._parts, self._engine.messages_until(is_last)])

    def close(self) -> None:
        """End everything."""
        self._engine.close()
        self._router.stop()

    def _next_engine(self) -> None:
        self._parts.append(self._engine.messages())
        self._engine = self._start_engine()

    def _start_engine(self) -> DebeziumEngine:
        uri = self._router.uri if self._through_router else self._cluster.mongos_uri
        folder = self._folder / f"engine{len(self._parts)}"
        folder.mkdir()
        return DebeziumEngine(uri, folder, self._properties)

    def _start_router(self, port: int) -> RouterProcess:
        upstream = f"mongodb://{self._cluster.mongos}"
        return start_router(self._cluster.configdb, upstream, port=port)
