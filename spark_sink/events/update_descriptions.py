"""Update events whose descriptions leave each path one meaning.

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
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from bson.errors import InvalidBSON

from shard_client.bson.values import INT32, STRING
from spark_sink.events.runs import Run
from spark_sink.events.slices import (
    Slice,
    array_of,
    document_slice,
    elements_of,
    fields_of,
    string_of,
    values_in,
)

_INT = struct.Struct("<i")
_SIZE = _INT.unpack_from
_RAW, _DESCRIPTION = b"rawUpdateDescription", b"updateDescription"
_MARK, _NEW_MARK = (b"\x03" + name + b"\0" for name in (_RAW, _DESCRIPTION))
PATHS = b"disambiguatedPaths"
"""The field of a description with the parts of paths that have several meanings."""
_UPDATED = b"\x03updatedFields\0"


def _rest(removed: Iterable[Slice], truncated: Iterable[Slice]) -> bytes:
    return array_of(removed).named(b"removedFields") + array_of(truncated).named(b"truncatedArrays")


_NOTHING_ELSE = _rest((), ())
_AS_SENT = b"\x10$v\0\x02\0\0\0\x03diff\0"
"""How the oplog begins every update: with the version, and then the changes."""
_IS_ARRAY = b"\x08a\0\x01"
Part = bytes | int
Parts = tuple[Part, ...]


def described(run: Run) -> Run:
    """Return the events; updates have `updateDescription` in place of the oplog's form.

    Raises InvalidBSON.
    """
    try:
        events = [_described(event) if _MARK in event else event for event in run.events]
    except (LookupError, ValueError, struct.error) as error:
        raise InvalidBSON(f"an update ends within a field: {error}") from error
    return Run(run.keys, events)


def _described(event: bytes) -> bytes:
    values = values_in(event, 0, len(event))
    start, end = next(((at, stop) for _, name, at, stop in values if name == _RAW), (0, 0))
    if not end:  # it is the name of a field of a document
        return event
    made = _description(event[start:end])
    body = b"".join((event[4 : start - len(_MARK)], _NEW_MARK, made, event[end:]))
    return _INT.pack(len(body) + 4) + body


def _description(raw: bytes) -> bytes:
    """Return the description that servers send for what the oplog has."""
    is_usual = raw.startswith(_AS_SENT, 4)
    diff = raw[4 + len(_AS_SENT) : -1] if is_usual else fields_of(raw)[b"diff"].value
    if diff[4:7] in (b"\x03u\0", b"\x03i\0") and _SIZE(diff, 7)[0] + 8 == len(diff):
        section = diff[7:-1]
        if b"." not in section or not any(b"." in name for name in fields_of(section)):
            body = _UPDATED + section + _NOTHING_ELSE  # names are paths, and nothing is nested
            return _INT.pack(len(body) + 5) + body + b"\0"
    description = _Description(diff)
    description.add(0, len(diff))
    return description.document()


class _Description:
    """What an update changes: the content of the description's fields, and each path as parts.

    A part is a name, or the index of an element.
    """

    def __init__(self, diff: bytes) -> None:
        self._diff = diff
        self._updated: list[bytes] = []
        self._removed: list[Slice] = []
        self._truncated: list[Slice] = []
        self._paths: tuple[list[tuple[bytes, Parts]], ...] = [], [], []  # in this order

    def add(self, start: int, end: int, path: Parts = (), prefix: bytes = b"") -> None:
        """Add the changes within the document or array at a path.

        The changes lie from `start` to `end`. `prefix` is the dotted path, and a dot.
        """
        diff = self._diff
        updated, removed, truncated = self._paths
        is_array = diff.startswith(_IS_ARRAY, start + 4)
        for kind, name, at, stop in values_in(diff, start + len(_IS_ARRAY) * is_array, end):
            section, last = name[:1], name[1:]
            if is_array and name == b"l":
                array = (b"field", string_of(prefix[:-1]))
                length = (b"newSize", Slice(kind, diff[at:stop]))
                self._truncated.append(document_slice((array, length)))
                truncated.append((prefix[:-1], path))
            elif section == b"s":
                self.add(at, stop, (*path, int(last) if is_array else last), prefix + last + b".")
            elif is_array:
                self._updated += (b"%c" % kind, prefix, last, b"\0", diff[at:stop])
                updated.append((prefix + last, (*path, int(last))))
            elif name == b"d":
                for _, field, _, _ in values_in(diff, at, stop):
                    self._removed.append(string_of(prefix + field))
                    removed.append((prefix + field, (*path, field)))
            else:
                for inner, field, begin, until in values_in(diff, at, stop):
                    self._updated += (b"%c" % inner, prefix, field, b"\0", diff[begin:until])
                    updated.append((prefix + field, (*path, field)))

    def document(self) -> bytes:
        """Return the description."""
        updated = b"".join(self._updated)
        rest = _NOTHING_ELSE
        if self._removed or self._truncated:
            rest = _rest(self._removed, self._truncated)
        rest += _unclear(list(chain(*self._paths)))
        body = b"".join((_UPDATED, _INT.pack(len(updated) + 5), updated, b"\0", rest))
        return _INT.pack(len(body) + 5) + body + b"\0"


def _unclear(changes: Sequence[tuple[bytes, Parts]]) -> bytes:
    """Return the field PATHS of a description with these paths; nothing if none has a dot."""
    if not any(b"." in dotted for dotted, _ in changes):
        return b""
    unclear = {dotted for dotted, parts in changes if _is_unclear(parts)}
    return listed(change for change in changes if change[0] in unclear).named(PATHS)


def _part(part: Part) -> Slice:
    return string_of(part) if isinstance(part, bytes) else Slice(INT32, _INT.pack(part))


def _is_unclear(parts: Parts) -> bool:
    """Return whether a name has a dot, or is a number that could be an index."""
    names = [part for part in parts if isinstance(part, bytes)]
    return b"." in b"".join(names) or any(map(bytes.isdigit, names[1:]))


class Paths:
    """The paths of a description, divided in its order: updated, removed, truncated.

    `are_exact` says whether it has `disambiguatedPaths`. Raises InvalidBSON.
    """

    def __init__(self, description: Mapping[bytes, Slice]) -> None:
        listed = description.get(PATHS)
        self.are_exact = listed is not None
        self._listed: dict[bytes, list[Parts]] = {}
        for dotted, parts in () if listed is None else elements_of(listed.value):
            path = tuple(
                element.string() if element.kind == STRING else element.whole_number() or 0
                for _, element in elements_of(parts.value)
            )
            self._listed.setdefault(dotted, []).append(path)

    def parts(self, dotted: bytes) -> Parts | None:
        """Return the parts of the next path if they are listed."""
        listed = self._listed.get(dotted)
        return listed.pop(0) if listed else None


def path_of(parts: Parts) -> bytes:
    """Return the dotted path of parts."""
    return b".".join([part if isinstance(part, bytes) else b"%d" % part for part in parts])


def listed(changes: Iterable[tuple[bytes, Parts]]) -> Slice:
    """Return `disambiguatedPaths` with these paths and their parts."""
    return document_slice((dotted, array_of(map(_part, parts))) for dotted, parts in changes)
