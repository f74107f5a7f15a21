"""A scripted mongos with a few documents, as a router's upstream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bson import Int64

from router.upstream.upstream_mongos import UpstreamMongos
from tests.doubles.scripted_server import Asked, ScriptedServer, scripted_server

Document = dict[str, Any]
Stage = Callable[[Document], Document | None]


@dataclass
class ScriptedMongos:
    """Finds documents by equality and ``$in``; runs ``stage`` over ``$documents``.

    Attributes:
        commands: the commands received.
        failures: errors for the next command of a name.
        refuse: returns the error of a find with this filter, or None.
        per_batch: the largest number of documents in a batch.
        released: while it is cleared, replies are held back.
        holds_back: the name of the commands whose replies are held back then; None for all.
    """

    documents: dict[str, list[Document]] = field(default_factory=dict)
    commands: list[Document] = field(default_factory=list)
    failures: dict[str, Document] = field(default_factory=dict)
    refuse: Callable[[Document], Document | None] = lambda _: None
    stage: Stage = lambda document: document
    per_batch: int | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    holds_back: str | None = None
    server: ScriptedServer = field(default_factory=ScriptedServer)
    _rest: dict[int, list[Document]] = field(default_factory=dict)
    _ids: int = 0

    def finds(self) -> list[Document]:
        """Return the filters of the finds so far."""
        return [each["filter"] for each in self.commands if "find" in each]

    def fail(self, name: str, code: int) -> None:
        """Make the next command of this name fail."""
        self.failures[name] = {"ok": 0.0, "errmsg": "scripted", "code": code}

    @cached_property
    def upstream(self) -> UpstreamMongos:
        """This server as a router's upstream."""
        return UpstreamMongos([("127.0.0.1", self.server.port)])

    async def answer(self, asked: Asked) -> None:
        command = asked.command
        self.commands.append(command)
        if self.holds_back in (None, next(iter(command))):
            await self.released.wait()
        asked.reply(self._reply(command))

    def _reply(self, command: Document) -> Document:
        name = next(iter(command))
        if name in self.failures:
            return self.failures.pop(name)
        if name == "find":
            error = self.refuse(command["filter"])
            if error is not None:
                return error
            stored = self.documents.get(command["find"], [])
            found = [each for each in stored if _matches(each, command["filter"])]
            return self._batch("firstBatch", f"db.{command['find']}", found)
        if name == "aggregate":
            given = command["pipeline"][0]["$documents"]["$literal"]
            found = [made for each in given if (made := self.stage(each)) is not None]
            return self._batch("firstBatch", "db.$cmd.aggregate", found)
        if name == "getMore":
            found = self._rest.pop(command["getMore"])
            return self._batch("nextBatch", f"db.{command['collection']}", found)
        if name == "killCursors":
            for number in command["cursors"]:
                del self._rest[number]
            return {"ok": 1.0}
        return {"ok": 0.0, "errmsg": f"no such command: '{name}'", "code": 59}

    def _batch(self, name: str, namespace: str, found: list[Document]) -> Document:
        count = len(found) if self.per_batch is None else self.per_batch
        number = 0
        if found[count:]:
            self._ids += 1
            number = self._ids
            self._rest[number] = found[count:]
        cursor = {name: found[:count], "id": Int64(number), "ns": namespace}
        return {"cursor": cursor, "ok": 1.0}


@asynccontextmanager
async def scripted_mongos(**documents: list[Document]) -> AsyncIterator[ScriptedMongos]:
    """Listen until the block ends; ``documents`` has the documents by collection name."""
    mongos = ScriptedMongos(documents)
    mongos.released.set()
    async with scripted_server(mongos.answer) as mongos.server:
        yield mongos


def _matches(document: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    for path, wanted in condition.items():
        value: Any = document
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        choices = wanted["$in"] if isinstance(wanted, Mapping) and "$in" in wanted else [wanted]
        if value not in choices:
            return False
    return True
