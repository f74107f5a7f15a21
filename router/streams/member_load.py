"""What the router sends to each member, counted for whoever runs the cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bson.int64 import Int64


@dataclass(slots=True)
class MemberLoad:
    """Counts of what one replica set was sent since the process started."""

    openings: int = 0
    """``aggregate`` commands that open cursors."""
    get_mores: int = 0
    """``getMore`` commands."""
    nudges: int = 0
    """Commands that move an idle oplog on: notes, and reads where notes are refused."""
    notes: int = 0
    """Notes that were written; the others found the oplog far enough already."""
    note_bytes: int = 0
    """What those notes take of the oplog."""

    def to_document(self) -> dict[str, Any]:
        """Return what serverStatus shows."""
        return {
            "openings": Int64(self.openings),
            "getMores": Int64(self.get_mores),
            "nudges": Int64(self.nudges),
            "notes": Int64(self.notes),
            "noteBytes": Int64(self.note_bytes),
        }


class MemberLoads:
    """The load of every shard and of the config server, by target."""

    def __init__(self) -> None:
        self._loads: dict[str, MemberLoad] = {}

    def of(self, target: str) -> MemberLoad:
        """Return the counts of ``target``, to be added to."""
        return self._loads.setdefault(target, MemberLoad())

    def items(self) -> Iterator[tuple[str, MemberLoad]]:
        """Return the targets that were sent anything, and their counts."""
        yield from self._loads.items()
