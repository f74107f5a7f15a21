"""The parent of several workers: starts them, restarts them after a failure, stops them."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import structlog
from bson.objectid import ObjectId

from router.admin.router_status import RouterStatus
from router.admin.server import admin_port
from router.commands.process_status import PROCESS_STATUS
from router.config.log_lines import LEVEL, RECENT
from router.config.settings import Settings
from router.limits.connection_limit import ConnectionLimit
from router.peers import messages
from router.peers.cursor_ids import new_mark
from router.peers.peers import Peer, ask_each
from router.tls.certificates import Certificates
from router.workers.child import Child, WorkerStart
from router.workers.dispatcher import ConnectionDispatcher
from shard_client.backoff import Backoff

log = structlog.get_logger(component="CONTROL")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_STEADY = 60.0
"""Seconds of running time after which a worker's restart pause is reset."""
_CANNOT_START = 71
"""The exit status for "system error", as in sysexits."""
_DRAIN_GRACE = 2.0
_END_TIMEOUT = 10.0


class WorkerFailedError(Exception):
    """A worker ended before the router was ready; ``status`` is its exit status."""

    def __init__(self, number: int, status: int) -> None:
        super().__init__(f"worker {number} ended with status {status} before it was ready")
        self.status = status


class Supervisor:
    """Runs a router's workers (docs/workers.md).

    ``arguments`` are the command line, for getCmdLineOpts; ``start_child`` starts a worker, and
    raises OSError.
    """

    def __init__(
        self,
        settings: Settings,
        arguments: Sequence[str],
        *,
        start_child: Callable[[WorkerStart], Awaitable[Child]] = Child.start,
    ) -> None:
        self._start_child = start_child
        self._settings = settings
        self._arguments = tuple(arguments)
        self._start: Callable[..., WorkerStart]
        """Returns what a worker starts with, for its number and the present log level."""
        self._alive: set[Child] = set()
        limits = settings.client_limits
        most = min(limits.connections * settings.workers, settings.net.max_incoming_connections)
        self._dispatcher = ConnectionDispatcher(
            ConnectionLimit(most, limits.connections_per_client, limits.exempt)
        )
        self._certificates: Certificates | None = None
        self._identity: messages.ShowIdentity | None = None
        self._upstream: messages.UseUpstream | None = None
        self._stopping = False
        self._all_ready = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then drain and stop all workers.

        With TLS, all processes exchange their certificates on SIGHUP.

        Raises:
            OSError: a port cannot be opened, or a file for the admin port not be read.
            ValueError: a file for the admin port is invalid.
            WorkerFailedError: a worker ended before all workers were ready.
        """
        net, feed = self._settings.net, self._settings.feed
        if net.tls.enabled:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._rotate)
        if net.admin.port is not None and net.admin_tls_mode != "disabled":
            self._certificates = Certificates(net.tls)
        temporary = TemporaryDirectory(prefix="mergerouter-", ignore_cleanup_errors=True)
        with temporary as name, ExitStack() as owned:
            folder = Path(name)
            owned.callback(self._dispatcher.close)
            ports = {"port": await self._dispatcher.open("driver", net.hosts, net.port)}
            if feed.port is not None:
                ports["feedPort"] = await self._dispatcher.open("feed", [feed.bind_ip], feed.port)
            self._start = partial(
                WorkerStart,
                mark=new_mark(),
                folder=folder,
                process_id=ObjectId(),
                started=datetime.now(UTC),
                settings=self._settings,
                arguments=self._arguments,
                port=ports["port"],
            )
            peers = {number: Peer(folder, number) for number in self._numbers}
            for peer in peers.values():
                owned.callback(peer.close)
            collect = partial(self._collect, peers)
            async with admin_port(net, self._certificates, collect) as admin:
                await self._keep_workers(stop, {**ports, **admin})
        log.info("Shut down")

    @property
    def _numbers(self) -> range:
        return range(1, self._settings.workers + 1)

    async def _collect(self, peers: Mapping[int, Peer], details: bool) -> RouterStatus:
        """Return the status, as ``Collect``; without workers that do not answer in two seconds."""
        ready = sorted(self._dispatcher.children)
        # One worker is enough to check the replica sets.
        processes = await ask_each(
            {
                peers[number]: {PROCESS_STATUS: 1, "details": details, "checks": number == ready[0]}
                for number in ready
            }
        )
        return RouterStatus(processes, len(peers), list(RECENT.failures) if details else ())

    def _rotate(self) -> None:
        """Make all processes exchange their certificates."""
        self._rotate_own()
        self._tell_all(messages.WorkerSignal.ROTATE_CERTIFICATES)

    def _tell_all(self, message: messages.WorkerMessage) -> None:
        for child in self._alive:
            child.channel.send(message)

    async def _keep_workers(self, stop: asyncio.Event, ports: Mapping[str, int]) -> None:
        try:
            async with anyio.create_task_group() as keepers:
                for number in self._numbers:
                    keepers.start_soon(self._keep, number)
                distributing = anyio.CancelScope()
                keepers.start_soon(self._distribute, distributing, ports)
                await stop.wait()
                distributing.cancel()
                await self._drain()
                keepers.cancel_scope.cancel()
        except ExceptionGroup as failures:  # the first failure has ended the others
            error: Exception = failures
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    async def _distribute(self, until: anyio.CancelScope, ports: Mapping[str, int]) -> None:
        """Accept clients once all workers are ready, until ``until`` is cancelled.

        Raises OSError: another process has bound the same port, and listens.
        """
        with until:
            await self._all_ready.wait()
            self._dispatcher.listen()
            log.info(
                "Waiting for connections",
                component="NETWORK",
                **ports,
                workers=[worker.process.pid for worker in self._dispatcher.children.values()],
            )
            await self._dispatcher.dispatch()
        self._dispatcher.close()

    async def _keep(self, number: int) -> None:
        """Run worker ``number``, and restart it whenever it ends.

        Raises WorkerFailedError: it has ended before all workers were ready.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not self._stopping:
            began = loop.time()
            status = await self._run_once(number)
            if self._stopping:
                return
            if not self._all_ready.is_set():
                raise WorkerFailedError(number, status)
            if loop.time() - began > _STEADY:
                backoff.reset()
            pause = backoff.next_pause()
            log.error(
                "A worker has ended; restarting it",
                worker=number,
                status=status,
                ranSeconds=round(loop.time() - began, 3),
                pauseSeconds=round(pause, 3),
            )
            await asyncio.sleep(pause)

    async def _run_once(self, number: int) -> int:
        """Run a worker until it ends; return its exit status (negative: the signal's number)."""
        start = self._start(number=number, verbosity=LEVEL.verbosity)
        try:
            child = await self._start_child(start)
        except OSError as error:
            log.error("Cannot start a worker", error=str(error))
            return _CANNOT_START
        self._alive.add(child)
        try:
            for told in (self._identity, self._upstream):
                if told is not None:
                    child.channel.send(told)
            async for report in child.reports():
                self._react(child, report)
            self._dispatcher.remove(number)
            with anyio.move_on_after(_END_TIMEOUT):
                return await child.process.wait()
            log.error("A worker does not end; killing it", worker=number, pid=child.process.pid)
            child.process.kill()
            return await child.process.wait()
        finally:
            self._dispatcher.remove(number)
            self._alive.discard(child)
            child.channel.close()
            if child.process.returncode is None:
                child.process.kill()
                with anyio.move_on_after(_END_TIMEOUT, shield=True):
                    await child.process.wait()

    def _react(self, child: Child, report: messages.WorkerMessage) -> None:
        """Make all processes follow what one worker reports."""
        match report:
            case messages.WorkerSignal.READY:
                self._dispatcher.add(child)
                log.info("A worker is ready", worker=child.number, pid=child.process.pid)
                if len(self._dispatcher.children) == self._settings.workers:
                    self._all_ready.set()
            case messages.ConnectionEnded(connection_id):
                self._dispatcher.release(child, connection_id)
            case messages.IdentityRead(identity):
                shown = self._identity
                if shown is None or identity != shown.identity:
                    counter = 1 if shown is None else shown.counter + 1
                    self._identity = messages.ShowIdentity(identity, counter)
                    self._tell_all(self._identity)
            case messages.UseUpstream(generation=generation):
                if self._upstream is None or generation > self._upstream.generation:
                    self._upstream = report
                    self._tell_all(report)
                else:
                    child.channel.send(self._upstream)
            case messages.SetVerbosity(verbosity):
                LEVEL.verbosity = verbosity
            case messages.WorkerSignal.ROTATE_CERTIFICATES:
                self._rotate_own()

    def _rotate_own(self) -> None:
        if self._certificates is not None:
            self._certificates.rotate()

    async def _drain(self) -> None:
        self._stopping = True
        children = list(self._dispatcher.children.values())
        seconds = self._settings.process.drain_time
        log.info("Shutting down", drainSeconds=seconds)
        for child in children:
            child.channel.send(messages.Drain(seconds))
        # A drained worker stays up: clients of other workers may still read its cursors.
        with anyio.move_on_after(seconds + _DRAIN_GRACE):
            for child in children:
                await child.drained.wait()
        for child in children:
            if child.drained.is_set():
                child.channel.send(messages.WorkerSignal.END)
            else:
                log.warning("A worker hangs; killing it", worker=child.number)
                child.process.kill()
        with anyio.move_on_after(_END_TIMEOUT):
            for child in children:
                await child.process.wait()
