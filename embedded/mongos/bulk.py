"""A bulk write: the commands for the shards, and the combined reply."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from embedded.errors import CommandError
from embedded.mongos.request import RoutedRequest
from embedded.mongos.shards import Shard
from embedded.storage.bson_values import Document

_LARGEST_BATCH = 1_000


class BulkWrite:
    """The statements of an insert, update or delete, and what the shards replied to them.

    A statement's position is its index in the client's command.

    Args:
        request: the client's command.
        field: ``documents``, ``updates`` or ``deletes``.

    Raises:
        CommandError: 14 TypeMismatch or 40414 if the command has no list of that name.
    """

    def __init__(self, request: RoutedRequest, field: str) -> None:
        self.request = request
        self.statements: list[Any] = request.field(field, list)
        self.ordered = bool(request.command.get("ordered", True))
        self.errors: list[Document] = []
        self._field = field
        self._n = 0
        self._modified: int | None = 0 if field == "updates" else None
        self._upserted: list[Document] = []

    async def send(self, shards: Sequence[Shard], positions: Sequence[int]) -> None:
        """Run some statements on each of these shards.

        Raises:
            CommandError: a shard's error for the whole command.
        """
        request = self.request
        command: Document = {
            request.name: request.collection,
            self._field: [self.statements[position] for position in positions],
            "ordered": self.ordered,
        }
        if request.retryable:
            first = request.command.get("stmtId", 0)
            ids = request.command.get("stmtIds")
            command["stmtIds"] = [ids[at] if ids else first + at for at in positions]
        if len(shards) == 1:
            self.add(await request.send(shards[0], command, write=True), positions)
            return
        replies = await request.send_all(dict.fromkeys(shards, command), write=True)
        for reply in replies.values():
            self.add(reply, positions)

    def add(self, reply: Document, positions: Sequence[int]) -> None:
        """Add a shard's reply to the statements at ``positions``."""
        self._n += reply.get("n", 0)
        if "nModified" in reply:
            self._modified = (self._modified or 0) + reply["nModified"]
        for upsert in reply.get("upserted", ()):
            self._upserted.append({**upsert, "index": positions[upsert["index"]]})
        for error in reply.get("writeErrors", ()):
            self.errors.append({**error, "index": positions[error["index"]]})

    def add_error(self, error: CommandError, position: int) -> None:
        """Add the error of a statement that no shard reported."""
        self.errors.append(
            {"index": position, "code": error.code, "errmsg": error.message, **error.extra}
        )

    def reply(self) -> Document:
        """Return the reply to the client."""
        reply: Document = {"n": self._n}
        if self._modified is not None:
            reply["nModified"] = self._modified
        if self._upserted:
            reply["upserted"] = sorted(self._upserted, key=lambda upsert: upsert["index"])
        if self.errors:
            reply["writeErrors"] = sorted(self.errors, key=lambda error: error["index"])
        return reply


def batches(owners: Iterable[Shard | None]) -> Iterator[tuple[Shard | None, list[int]]]:
    """Split a sequence of statements into runs for one shard each, in order.

    Args:
        owners: each statement's shard; ``None`` for a statement without a single shard, which forms
            a run of its own.
    """
    current: Shard | None = None
    run: list[int] = []
    for position, owner in enumerate(owners):
        if run and (owner is not current or owner is None or len(run) >= _LARGEST_BATCH):
            yield current, run
            run = []
        current = owner
        run.append(position)
    if run:
        yield current, run
