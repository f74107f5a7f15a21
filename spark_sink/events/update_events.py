"""Update events whose descriptions name every path without doubt.

A change stream describes an update by dotted paths. Where names have dots, a path may stand for
several fields, and servers before 6.1 do not tell which. So a query reads the update as the oplog
has it (`showRawUpdateDescription`), which nests the changed fields as the document does. From that
its events get the `updateDescription` that servers send, with `disambiguatedPaths` if a path has a
dot: the parts of each path that has a name with a dot, or a number that is a name. All other paths
are divided at their dots then, and a number is an index of an array.

The oplog's form (docs/protocol.md#events): `u`, `i` and `d` have the fields that were changed, are
new and were removed; `s` and a name has the changes within that field. Those of an array have `a`,
its new length `l` if it is shorter, and `u` and `s` with the numbers of elements.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping

from shard_client.bson.values import INT32, STRING
from spark_sink.events.runs import Run
from spark_sink.events.slices import (
    Slice,
    array_of,
    document_of,
    document_slice,
    elements_of,
    fields_of,
    place_of,
    string_of,
)

_INT = struct.Struct("<i")
_SIZE = _INT.unpack_from
_RAW, _DESCRIPTION = b"rawUpdateDescription", b"updateDescription"
_MARK, _NEW_MARK = (b"\x03" + name + b"\0" for name in (_RAW, _DESCRIPTION))
PATHS = b"disambiguatedPaths"
"""The field of a description with the parts of paths that have several meanings."""
_UPDATED = b"\x03updatedFields\0"
_NOTHING_ELSE = b"".join(array_of(()).named(n) for n in (b"removedFields", b"truncatedArrays"))
Part = bytes | int
Parts = tuple[Part, ...]
_Change = tuple[bytes, Parts, Slice]


def described(run: Run) -> Run:
    """Return events, of which updates have `updateDescription` for what the oplog has.

    Raises InvalidBSON.
    """
    events = [_described(each) if _MARK in each else each for each in run.events]
    return Run(run.keys, events)


def _described(event: bytes) -> bytes:
    place = place_of(event, _RAW)
    if place is None:  # it is the name of a field of a document
        return event
    start, end = place
    head = event[4 : start - len(_MARK)]
    body = b"".join((head, _NEW_MARK, _description(event[start:end]), event[end:]))
    return _INT.pack(len(body) + 4) + body


def _description(raw: bytes) -> bytes:
    """Return the description that servers send for what the oplog has."""
    diff = fields_of(raw)[b"diff"].value
    if diff[4:7] in (b"\x03u\0", b"\x03i\0") and _SIZE(diff, 7)[0] + 8 == len(diff):
        section = diff[7:-1]
        if b"." not in section or not any(b"." in name for name in fields_of(section)):
            body = _UPDATED + section + _NOTHING_ELSE  # names are paths, and nothing is nested
            return _INT.pack(len(body) + 5) + body + b"\0"
    found = _Description()
    found.add(diff)
    return found.document()


class _Description:
    """What an update changes: each change with its dotted path, the path's parts, and a value.

    A part is a name, or the index of an element.
    """

    def __init__(self) -> None:
        self._updated: list[_Change] = []
        self._removed: list[_Change] = []
        self._truncated: list[_Change] = []

    def add(self, diff: bytes, path: Parts = (), prefix: bytes = b"") -> None:
        """Add the changes within a document or array, at a path, whose dotted form has a dot more.

        Raises InvalidBSON.
        """
        fields = elements_of(diff)
        is_array = bool(fields) and fields[0][0] == b"a"
        for name, value in fields[1:] if is_array else fields:
            kind, last = name[:1], name[1:]
            if is_array and name == b"l":
                dotted = prefix[:-1]
                truncated = [(b"field", string_of(dotted)), (b"newSize", value)]
                self._truncated.append((dotted, path, document_slice(truncated)))
            elif kind == b"s":
                part = int(last) if is_array else last
                self.add(value.value, (*path, part), prefix + last + b".")
            elif is_array:
                self._updated.append((prefix + last, (*path, int(last)), value))
            elif name == b"d":
                for field, _ in elements_of(value.value):
                    dotted = prefix + field
                    self._removed.append((dotted, (*path, field), string_of(dotted)))
            else:
                fields_here = elements_of(value.value)
                self._updated += [(prefix + n, (*path, n), each) for n, each in fields_here]

    def document(self) -> bytes:
        """Return the description."""
        fields = [
            (b"updatedFields", document_slice((dotted, v) for dotted, _, v in self._updated)),
            (b"removedFields", array_of(each for _, _, each in self._removed)),
            (b"truncatedArrays", array_of(each for _, _, each in self._truncated)),
        ]
        changes = [*self._updated, *self._removed, *self._truncated]
        if any(b"." in dotted for dotted, _, _ in changes):
            times = Counter(dotted for dotted, _, _ in changes)
            unclear = (
                (dotted, parts)
                for dotted, parts, _ in changes
                if _is_unclear(parts) or times[dotted] > 1
            )
            fields.append((PATHS, listed(unclear)))
        return document_of(fields)


def _part(part: Part) -> Slice:
    return string_of(part) if isinstance(part, bytes) else Slice(INT32, _INT.pack(part))


def _is_unclear(parts: Parts) -> bool:
    """Return whether a name has a dot, or is a number that could be an index."""
    names = [part for part in parts if isinstance(part, bytes)]
    return any(b"." in name for name in names) or any(map(bytes.isdigit, names[1:]))


class Paths:
    """The paths of a description, divided in its order: updated, removed, truncated.

    `are_exact` says whether it has `disambiguatedPaths`. Raises InvalidBSON.
    """

    def __init__(self, description: Mapping[bytes, Slice]) -> None:
        listed = description.get(PATHS)
        self.are_exact = listed is not None
        self._listed: dict[bytes, list[Parts]] = {}
        for dotted, parts in () if listed is None else elements_of(listed.value):
            found = tuple(
                each.value[4:-1] if each.kind == STRING else each.whole_number() or 0
                for _, each in elements_of(parts.value)
            )
            self._listed.setdefault(dotted, []).append(found)

    def parts(self, dotted: bytes) -> Parts | None:
        """Return the parts of the next path if they are listed."""
        listed = self._listed.get(dotted)
        return listed.pop(0) if listed else None


def path_of(parts: Parts) -> bytes:
    """Return the dotted path of parts."""
    return b".".join([each if isinstance(each, bytes) else b"%d" % each for each in parts])


def listed(changes: Iterable[tuple[bytes, Parts]]) -> Slice:
    """Return `disambiguatedPaths` with these paths and their parts."""
    return document_slice((dotted, array_of(map(_part, parts))) for dotted, parts in changes)
