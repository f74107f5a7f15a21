"""The load generator's writes, a reader's events, and the verdict from their comparison.

Pure: this module computes the demo's claim "nothing lost, nothing doubled, in order".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self


class Change(NamedTuple):
    """One change, identified by its operation, the document's id and the version written."""

    operation: str
    key: int
    version: int | None

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> Self:
        """Return the change of a decoded change event.

        Args:
            event: a change event with ``documentKey`` and, for an insert, ``fullDocument``, for an
                update, ``updateDescription``.

        Raises:
            KeyError: the event is not one of the demo's (docs/protocol.md#events).
        """
        operation, key = event["operationType"], event["documentKey"]["_id"]
        if operation == "insert":
            return cls(operation, key, event["fullDocument"]["version"])
        if operation == "update":
            return cls(operation, key, event["updateDescription"]["updatedFields"]["version"])
        return cls(operation, key, None)


@dataclass(slots=True)
class Seen:
    """The changes that one reader of the merged stream received, in its order."""

    changes: list[Change] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    last_token: str = ""
    out_of_order: int = 0

    def add(self, token: str, change: Change) -> None:
        """Record a delivered change, and whether its resume token exceeds the previous one."""
        if token <= self.last_token:
            self.out_of_order += 1
        self.last_token = token
        self.tokens.append(token)
        self.changes.append(change)

    def after(self, mark: str) -> list[Change]:
        """Return the changes whose tokens sort above ``mark``, as what a later reader must get."""
        pairs = zip(self.tokens, self.changes, strict=True)
        return [change for token, change in pairs if token > mark]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one reader's changes with the writes.

    ``late`` is whether the reader had not caught up when the demo ended.
    """

    reader: str
    written: int
    delivered: int
    lost: int
    duplicated: int
    unexpected: int
    out_of_order: int
    late: bool = False

    @property
    def wrong(self) -> bool:
        """Whether the reader differs from what was written, and not because it is late."""
        missing = not self.late and (self.lost or self.unexpected)
        return bool(missing or self.duplicated or self.out_of_order)

    @property
    def good(self) -> bool:
        """Whether changes were written, and each was delivered exactly once and in order."""
        return self.written > 0 and not (self.wrong or self.lost or self.unexpected)


def judge(reader: str, written: Sequence[Change], seen: Seen) -> Verdict:
    """Compare the changes that ``reader`` received with the acknowledged writes.

    Order is checked twice: resume tokens must rise, and the changes of one document must come in
    the order in which they were acknowledged.
    """
    expected = Counter(written)
    delivered = Counter(seen.changes)
    return Verdict(
        reader=reader,
        written=len(written),
        delivered=len(seen.changes),
        lost=(expected - delivered).total(),
        duplicated=sum(count - 1 for count in delivered.values() if count > 1),
        unexpected=sum(1 for change in delivered if change not in expected),
        out_of_order=seen.out_of_order + _reordered(written, seen.changes),
    )


def judge_table(
    reader: str, documents: Mapping[int, int], rows: Sequence[tuple[int, int]]
) -> Verdict:
    """Compare the rows of a table with the documents of its collection.

    Args:
        reader: its name in the verdict.
        documents: the version of each document, by id.
        rows: the id and the version of each row.
    """
    table = dict(rows)
    return Verdict(
        reader=reader,
        written=len(documents),
        delivered=len(rows),
        lost=len(documents.keys() - table.keys()),
        duplicated=len(rows) - len(table),
        unexpected=sum(documents.get(key) != version for key, version in table.items()),
        out_of_order=0,
    )


def _reordered(written: Sequence[Change], seen: Sequence[Change]) -> int:
    """Count the documents whose changes arrived in another order than they were written."""
    wrote, saw = _by_key(written), _by_key(seen)
    return sum(
        [change for change in changes if change in saw[key]]
        != [change for change in saw[key] if change in changes]
        for key, changes in wrote.items()
        if key in saw
    )


def _by_key(changes: Sequence[Change]) -> dict[int, list[Change]]:
    by_key: dict[int, list[Change]] = {}
    for change in dict.fromkeys(changes):
        by_key.setdefault(change.key, []).append(change)
    return by_key
