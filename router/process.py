"""The router's process: either the only process, or the parent of several workers."""

import asyncio
import signal
import sys

import structlog

from router.config.settings import Settings
from router.service import serve
from router.workers.supervisor import Supervisor

log = structlog.get_logger()


async def run_until_signalled(settings: Settings) -> None:
    """Run the router until SIGTERM or SIGINT; a second signal ends it at once.

    With TLS, SIGHUP exchanges the certificates.
    """
    options = settings.given()
    log.info("Options set by command line", component="CONTROL", id=21951, options=options)
    stop, rotate = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled(number: int) -> None:
        again = stop.is_set()
        stop.set()
        log.info("Got signal", component="CONTROL", signal=signal.Signals(number).name)
        if again:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    if settings.net.tls.enabled:
        loop.add_signal_handler(signal.SIGHUP, rotate.set)
    if settings.workers == 1:
        await serve(settings, sys.argv, stop, rotate=rotate)
    else:
        await Supervisor(settings, sys.argv).run(stop, rotate)
