"""An embedded mongod: a replica set of one member, in memory, behind a socket."""

import asyncio
from typing import Any

import structlog

from embedded.client import Client
from embedded.commands import dispatch
from embedded.errors import CommandError
from embedded.logical_clock import client_time
from embedded.member import Member
from embedded.server import Server
from embedded.storage.bson_values import Document

log = structlog.get_logger()


class Mongod(Member):
    """The only member of its replica set, served on a port; primary until it steps down.

    Takes the arguments of ``Member``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._server = Server(self.run_command, self.access.tls)
        self._noops: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self._answers.set()

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1, on a free port if ``port`` is 0.

        Raises:
            OSError: the port is taken.
        """
        await self._server.start(port)
        self.address = self._server.address
        if self.noop_interval > 0:
            self._noops = asyncio.create_task(self._write_noops(), name=f"noops of {self.name}")
        log.info("member listening", member=self.name, role=self.role, port=self.address[1])

    async def stop(self) -> None:
        """Close all connections and cursors and abort all transactions."""
        if self._noops is not None:
            self._noops.cancel()
            await asyncio.gather(self._noops, return_exceptions=True)
            self._noops = None
        await self._server.stop()
        self.cursors.close()
        for session in self.sessions:
            if session.transaction is not None and session.transaction.is_open:
                self.journal.abort(session.transaction)

    async def restart(self, down_for: float) -> None:
        """Stop, and after ``down_for`` seconds start at the same address with the same data."""
        await self.stop()
        await asyncio.sleep(down_for)
        await self.start_again()

    async def start_again(self) -> None:
        """Start after ``stop``, at the same address with the same data."""
        self.topology_version = self.new_process()
        await self.start(self.address[1])

    def hang(self) -> None:
        """Accept connections and commands, but send no replies until ``go_on``."""
        self._answers.clear()

    def go_on(self) -> None:
        """Reply to the commands received since ``hang``, and to later ones."""
        self._answers.set()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self._server.connections

    # Commands

    async def run_command(self, database: str, command: Document, client: Client) -> Document:
        """Run one command and return its complete reply; errors become ``ok: 0``.

        Gossips: adopts the command's ``$clusterTime`` and adds ``$clusterTime`` and
        ``operationTime`` to the reply.
        """
        await self._answers.wait()
        try:
            time = client_time(command)
            if time is not None:
                self.clock.advance(time)
            self.elections.check(command)
            reply = await self.execute(database, command, client)
            reply["ok"] = 1.0
        except CommandError as error:
            reply = error.to_reply()
        last = self.oplog.last_ts or self.clock.time
        reply["lastCommittedOpTime"] = last
        reply["$clusterTime"] = self.access.shown(self.clock.time, client)
        reply["operationTime"] = last
        return reply

    async def execute(self, database: str, command: Document, client: Client) -> Document:
        """Run one command without gossip and return its reply.

        Raises:
            CommandError: the command fails.
        """
        return await dispatch.execute(self, database, command, client)

    async def _write_noops(self) -> None:
        while True:
            before = self.oplog.last_ts
            await asyncio.sleep(self.noop_interval)
            if self.oplog.last_ts == before:
                self.append_noop({"msg": "periodic noop"})
