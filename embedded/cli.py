"""The command `mergerouter embedded`."""

import asyncio
import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import structlog
import typer
import uvloop

from embedded.cluster import EmbeddedCluster

READY = "Waiting for connections"


def embedded(
    shards: Annotated[int, typer.Option(min=0, max=64, help="Number of shards.")] = 3,
    port: Annotated[int, typer.Option(help="Port of the mongos endpoint; 0 picks a free one.")] = 0,
    token_version: Annotated[
        int, typer.Option(min=1, max=2, help="1 behaves like MongoDB 6.0, 2 like 7.0 and newer.")
    ] = 1,
    noop_interval: Annotated[
        float, typer.Option(min=0.01, help="Seconds between an idle server's no-ops.")
    ] = 10.0,
    oplog_size: Annotated[
        int, typer.Option(min=10, help="Number of entries that each server's oplog keeps.")
    ] = 200_000,
) -> None:
    """Run a small sharded cluster in this process, in memory, until it is stopped."""
    _log_as_json()
    cluster = EmbeddedCluster(
        shards,
        port=port,
        token_version=token_version,
        noop_interval=noop_interval,
        oplog_size=oplog_size,
    )
    try:
        uvloop.run(_run(cluster))
    except OSError as error:
        structlog.get_logger().error("Cannot start", error=str(error), port=port)
        raise typer.Exit(48) from error


async def _run(cluster: EmbeddedCluster) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        async with cluster:
            structlog.get_logger().info(
                READY,
                mongos=cluster.mongos_address,
                configdb=cluster.configdb,
                shards=cluster.shards,
                pid=os.getpid(),
            )
            await stopping.wait()
    finally:
        structlog.get_logger().info("Stopped")


def _log_as_json() -> None:
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _mongodb_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )


def _mongodb_line(_logger: Any, level: str, event: Any) -> str:
    """Format a log line as MongoDB's servers do: t, s, c, msg, attr."""
    message = event.pop("event")
    line = {
        "t": {"$date": datetime.now(UTC).isoformat(timespec="milliseconds")},
        "s": level[0].upper(),
        "c": "EMBEDDED",
        "msg": message,
        "attr": event,
    }
    return json.dumps(line, default=str)
