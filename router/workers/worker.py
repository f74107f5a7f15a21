"""A worker process: ``python -m router.workers.worker CHANNEL HANDOFF``, started by the parent.

The two arguments are the descriptors of the worker's ends of the socket pairs. It reads its other
parameters, a ``WorkerStart``, from standard input.
"""

import pickle
import signal
import socket
import sys

import structlog
import uvloop

from router.config.log_lines import configure_logging
from router.config.settings import Settings
from router.memory import collect_less_often, keep_freed_memory
from router.service import assemble
from router.workers.channel import Channel
from router.workers.runtime import WorkerRuntime
from router.workers.start import WorkerStart

_CHANNEL, _HANDOFF_SOCKET = 1, 2


def main() -> None:
    """Run one worker until its parent ends it."""
    # A terminal or service manager signals the whole process group; only the parent reacts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    start: WorkerStart = pickle.load(sys.stdin.buffer)  # noqa: S301 (our own parent wrote it)
    settings = Settings(**start.settings)
    configure_logging(start.verbosity, quiet=settings.system_log.quiet)
    structlog.contextvars.bind_contextvars(ctx=f"worker{start.number}")
    keep_freed_memory()
    collect_less_often()
    channel, handoff_socket = (
        socket.socket(fileno=int(sys.argv[each])) for each in (_CHANNEL, _HANDOFF_SOCKET)
    )
    uvloop.run(_run(settings, start, channel, handoff_socket))


async def _run(
    settings: Settings,
    start: WorkerStart,
    channel_end: socket.socket,
    handoff_socket: socket.socket,
) -> None:
    channel = await Channel.over(channel_end)
    try:
        runtime = WorkerRuntime(start, channel, handoff_socket)
        async with assemble(settings, start.arguments, share=runtime.share) as parts:
            await runtime.serve(*parts)
    finally:
        channel.close()


if __name__ == "__main__":
    main()
