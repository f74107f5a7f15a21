"""Conversion of ``$v: 2`` oplog diffs to ``updateDescription`` (docs/protocol.md#events)."""

from collections.abc import Mapping
from typing import Any


def describe_update(diff: Mapping[str, Any], *, disambiguate: bool) -> dict[str, Any]:
    """Return the updateDescription of ``diff``; ``disambiguate`` adds ``disambiguatedPaths``."""
    description = _Description()
    description.document(diff)
    result: dict[str, Any] = {
        "updatedFields": description.updated,
        "removedFields": description.removed,
        "truncatedArrays": description.truncated,
    }
    if disambiguate:
        result["disambiguatedPaths"] = description.paths
    return result


class _Description:
    """A walk over a diff; ``_path`` holds field names (str) and array positions (int)."""

    def __init__(self) -> None:
        self.updated: dict[str, Any] = {}
        self.removed: list[str] = []
        self.truncated: list[dict[str, Any]] = []
        self.paths: dict[str, Any] = {}
        self._path: list[str | int] = []

    def document(self, diff: Mapping[str, Any]) -> None:
        """Process a document's diff: changed, new and removed fields, then nested diffs."""
        for section in ("u", "i"):
            for name, value in diff.get(section, {}).items():
                self.updated[self._note(name)] = value
        for name in diff.get("d", {}):
            self.removed.append(self._note(name))
        for name, inner in diff.items():
            if name.startswith("s"):
                self._inside(name[1:], inner)

    def _array(self, diff: Mapping[str, Any]) -> None:
        if "l" in diff:
            self.truncated.append({"field": self._note(), "newSize": diff["l"]})
        for name, inner in diff.items():
            if name[0] == "u":
                self.updated[self._note(int(name[1:]))] = inner
            elif name[0] == "s":
                self._inside(int(name[1:]), inner)

    def _inside(self, part: str | int, diff: Mapping[str, Any]) -> None:
        self._path.append(part)
        if diff.get("a"):
            self._array(diff)
        else:
            self.document(diff)
        self._path.pop()

    def _note(self, *last: str | int) -> str:
        """Return the dotted path; record its parts if dots or digits in names make it ambiguous."""
        path = [*self._path, *last]
        dotted = ".".join(map(str, path))
        if any(_ambiguous(part, place) for place, part in enumerate(path)):
            self.paths[dotted] = path
        return dotted


def _ambiguous(part: str | int, place: int) -> bool:
    if isinstance(part, int):
        return False
    looks_like_position = part.isdecimal() and (part == "0" or part[0] != "0")
    return "." in part or (place > 0 and looks_like_position)
