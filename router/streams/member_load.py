"""Counts of the commands that the router sends to each replica set."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bson.int64 import Int64


@dataclass(slots=True)
class MemberLoad:
    """Counts of the commands sent to one replica set since the process started."""

    openings: int = 0
    """``aggregate`` commands that open cursors."""
    get_mores: int = 0
    """``getMore`` commands."""
    nudges: int = 0
    """Commands that make an idle oplog advance: notes, or reads where notes are refused."""
    notes: int = 0
    """Notes that were written; the oplog had already advanced far enough for the others."""
    note_bytes: int = 0
    """Bytes that these notes take in the oplog."""

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
    """The load of each shard and of the config server, by target."""

    def __init__(self) -> None:
        self._loads: dict[str, MemberLoad] = {}

    def of(self, target: str) -> MemberLoad:
        """Return the counts of ``target``, for the caller to increment."""
        return self._loads.setdefault(target, MemberLoad())

    def items(self) -> Iterator[tuple[str, MemberLoad]]:
        """Return the targets that were sent commands, with their counts."""
        yield from self._loads.items()
