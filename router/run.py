"""The router's process: either the only process, or the parent of several workers."""

import asyncio
import signal
import sys

import structlog

from router.assembly import check_servers, process_parts, serve_process
from router.config.settings import Settings
from router.workers.supervisor import Supervisor

log = structlog.get_logger(component="CONTROL")


class WrongServersError(Exception):
    """The settings name servers that are none of this cluster's; the message has the remedies."""


async def run_until_signalled(settings: Settings) -> None:
    """Run the router until SIGTERM or SIGINT; a second signal ends it immediately.

    With TLS, SIGHUP exchanges the certificates. Raises WrongServersError: a server that the
    settings name is another one than it should be.
    """
    options = settings.given()
    log.info("Options set by command line", id=21951, options=options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled(number: int) -> None:
        again = stop.is_set()
        stop.set()
        log.info("Got signal", signal=signal.Signals(number).name)
        if again:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    if settings.net.tls.enabled:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are certificates to exchange
    if not await _servers_fit(settings, stop):
        return
    if settings.workers == 1:
        await serve_process(process_parts(settings, sys.argv), stop)
    else:
        await Supervisor(settings, sys.argv).run(stop)


async def _servers_fit(settings: Settings, stop: asyncio.Event) -> bool:
    """Check the servers that the settings name; return False if ``stop`` was set meanwhile.

    Servers that do not answer yet are logged: the router waits for them as it runs. Raises
    WrongServersError: another server answers, which waiting does not change.
    """
    checking = asyncio.ensure_future(check_servers(settings))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((checking, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        checking.cancel()
        await asyncio.wait((checking,))
        return False
    failed = [check for check in checking.result() if check.is_problem]
    if any(check.severity == "fatal" for check in failed):
        raise WrongServersError("; ".join(f"{check.subject} {check.text}" for check in failed))
    for check in failed:
        log.warning(
            "A server fails its check",
            component="SHARDING",
            subject=check.subject,
            problem=check.text,
        )
    return True
