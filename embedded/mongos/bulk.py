"""The combined reply to a write on several shards."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from embedded.errors import CommandError
from embedded.mongos.members import Member
from embedded.storage.bson_values import Document

_LARGEST_BATCH = 1_000


@dataclass
class BulkResult:
    """Counts and errors of a bulk write; positions refer to the client's command."""

    n: int = 0
    modified: int | None = None
    upserted: list[Document] = field(default_factory=list)
    errors: list[Document] = field(default_factory=list)

    def add(self, reply: Document, positions: Sequence[int]) -> None:
        """Add a shard's reply to the statements at ``positions``."""
        self.n += reply.get("n", 0)
        if "nModified" in reply:
            self.modified = (self.modified or 0) + reply["nModified"]
        for upsert in reply.get("upserted", ()):
            self.upserted.append({**upsert, "index": positions[upsert["index"]]})
        for error in reply.get("writeErrors", ()):
            self.errors.append({**error, "index": positions[error["index"]]})

    def add_error(self, error: CommandError, position: int) -> None:
        """Add the error of a statement that was sent to no shard."""
        self.errors.append(
            {"index": position, "code": error.code, "errmsg": error.message, **error.extra}
        )

    def reply(self) -> Document:
        """Return the reply to the client."""
        reply: Document = {"n": self.n}
        if self.modified is not None:
            reply["nModified"] = self.modified
        if self.upserted:
            reply["upserted"] = sorted(self.upserted, key=lambda upsert: upsert["index"])
        if self.errors:
            reply["writeErrors"] = sorted(self.errors, key=lambda error: error["index"])
        return reply


def batches(owners: Iterable[Member | None]) -> Iterator[tuple[Member | None, list[int]]]:
    """Split a sequence of statements into runs for one shard each, in order.

    Args:
        owners: each statement's shard; ``None`` for a statement without a single shard, which forms
            a run of its own.
    """
    current: Member | None = None
    run: list[int] = []
    for position, owner in enumerate(owners):
        if run and (owner is not current or owner is None or len(run) >= _LARGEST_BATCH):
            yield current, run
            run = []
        current = owner
        run.append(position)
    if run:
        yield current, run


def picked(values: Sequence[Any], positions: Iterable[int]) -> list[Any]:
    """Return the values at ``positions``."""
    return [values[position] for position in positions]
