"""Embedded members for tests, driven inside the process without sockets."""

from typing import Any

from bson.timestamp import Timestamp

from embedded.clients import Client
from embedded.mongod import Mongod

SESSION = {"id": b"0123456789abcdef"}
OTHER_SESSION = {"id": b"fedcba9876543210"}


class Driver:
    """Runs commands on a member as a driver would, one session and client per object."""

    def __init__(self, mongod: Mongod | None = None, session: dict[str, Any] = SESSION) -> None:
        self.mongod = mongod or Mongod("rs")
        self.client = Client(connection_id=1)
        self._session = session
        self._number = 0

    async def run(self, command: dict[str, Any], database: str = "db") -> dict[str, Any]:
        return await self.mongod.execute(database, command, self.client)

    async def start(self) -> None:
        """Begin a transaction with the next statement."""
        self._number += 1
        self._starting = True

    async def within(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run a statement of the transaction."""
        command |= {"lsid": self._session, "txnNumber": self._number, "autocommit": False}
        if self._starting:
            command["startTransaction"] = True
            self._starting = False
        return await self.run(command)

    async def retryable(self, command: dict[str, Any], number: int) -> dict[str, Any]:
        return await self.run(command | {"lsid": self._session, "txnNumber": number})

    async def commit(self) -> None:
        await self.finish("commitTransaction")

    async def finish(self, name: str) -> None:
        fields = {"lsid": self._session, "txnNumber": self._number, "autocommit": False}
        await self.run({name: 1, **fields}, "admin")

    async def documents(self, collection: str = "c") -> list[dict[str, Any]]:
        reply = await self.run({"find": collection, "batchSize": 10_000})
        return list(reply["cursor"]["firstBatch"])

    def entries(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the oplog's entries of these kinds (op), oldest first."""
        return [
            dict(entry)
            for entry in self.mongod.oplog.since(Timestamp(0, 0))
            if entry["op"] in kinds
        ]
