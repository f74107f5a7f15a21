"""An embedded mongod: a replica set of one member, in memory, behind a socket."""

import asyncio
from typing import Any

import structlog
from bson.timestamp import Timestamp

from embedded.clients import Client
from embedded.commands import dispatch
from embedded.member import Member
from embedded.server import Server
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError

log = structlog.get_logger()

_MOST_DRIFT = 365 * 86_400
"""Seconds that a gossiped cluster time may be ahead of the wall clock."""


class Mongod(Member):
    """The only member of its replica set, served on a port; primary unless told to step down.

    Takes the arguments of ``Member``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._server = Server(self)
        self._noops: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self._answers.set()

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1, on a free port when ``port`` is 0."""
        await self._server.start(port)
        self.address = self._server.address
        if self.noop_interval > 0:
            self._noops = asyncio.create_task(self._write_noops(), name=f"noops of {self.name}")
        log.info("member listens", member=self.name, role=self.role, port=self.address[1])

    async def stop(self) -> None:
        """End all connections, cursors and transactions."""
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
        """Stop, and be back after ``down_for`` seconds at the same address with the same data."""
        await self.stop()
        await asyncio.sleep(down_for)
        await self.start_again()

    async def start_again(self) -> None:
        """Start after ``stop``, at the same address with the same data."""
        self.topology_version = self.new_process()
        await self.start(self.address[1])

    def hang(self) -> None:
        """Take connections and commands, but answer none of them until ``go_on``."""
        self._answers.clear()

    def go_on(self) -> None:
        """Answer what has been waiting since ``hang``, and what comes."""
        self._answers.set()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._server.connections

    # commands

    async def run_command(self, database: str, command: Document, client: Client) -> Document:
        """Answer one command with a whole reply, errors included as ``ok: 0``.

        Gossips: takes ``$clusterTime`` in, puts ``$clusterTime`` and ``operationTime`` on replies.
        """
        await self._answers.wait()
        try:
            self._hear(command)
            self.elections.check(command)
            reply = await self.execute(database, command, client)
            reply["ok"] = 1.0
        except CommandError as error:
            reply = error.to_reply()
        last = self.oplog.last_ts or self.clock.time
        reply["lastCommittedOpTime"] = last
        reply["$clusterTime"] = self.clock.document()
        reply["operationTime"] = last
        return reply

    def _hear(self, command: Document) -> None:
        heard = command.get("$clusterTime")
        if not isinstance(heard, dict) or not isinstance(heard.get("clusterTime"), Timestamp):
            return
        if heard["clusterTime"].time > self.wall() + _MOST_DRIFT:
            raise CommandError(
                200,
                "New cluster time is too far from this node's wall clock time",
                code_name="ClusterTimeFailsRateLimiter",
            )
        self.clock.advance(heard["clusterTime"])

    async def execute(self, database: str, command: Document, client: Client) -> Document:
        """Answer one command; raises CommandError, and leaves the gossip to the caller."""
        return await dispatch.execute(self, database, command, client)

    def connection_closed(self, client: Client) -> None:
        """A client is gone; its cursors and sessions stay, as on a server."""

    async def _write_noops(self) -> None:
        while True:
            before = self.oplog.last_ts
            await asyncio.sleep(self.noop_interval)
            if self.oplog.last_ts == before:
                self.append_noop({"msg": "periodic noop"})
