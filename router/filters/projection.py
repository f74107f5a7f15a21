"""``$project`` and ``$unset`` on raw BSON, in the forms that name whole fields.

An inclusion keeps the named fields in the document's own order, an exclusion drops them; both enter
arrays, element by element. Source: the documentation of ``$project``; tests/filters holds the
results against a real mongod.
"""

from dataclasses import dataclass
from typing import Final

from router.filters.field_walk import UNIT_BYTES, Allowance
from router.filters.match_compiler import Declined
from router.filters.values import number
from shard_client.bson.values import (
    ARRAY,
    BOOLEAN,
    CONTAINERS,
    DOCUMENT,
    INT32,
    INT64,
    STRING,
    value_end,
)
from shard_client.wire.bson_slices import Element, document_of, iter_elements

_MOST_DEPTH: Final = 20
_MOST_FIELDS: Final = 1000

Tree = dict[bytes, "Tree | None"]
"""The named fields of a document: None for a whole field, else the fields inside it."""

_UNNAMED: Final[Tree] = {}
"""What stands for a field that is not named."""


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """An inclusion (``keeps``) or exclusion of the fields ``named``."""

    named: Tree
    keeps: bool

    def apply(self, event: bytes, allowance: Allowance) -> bytes:
        """Return the event with its projected fields.

        Raises ValueError, IndexError or struct.error if it is malformed, and TooLargeError, a
        ValueError, if the ``allowance`` is not enough.
        """
        return self._projected(event, DOCUMENT, 0, self.named, allowance)

    def _projected(
        self, data: bytes, kind: int, start: int, named: Tree | None, allowance: Allowance
    ) -> bytes:
        """Return the document or array of type ``kind`` at ``start`` with its projected fields.

        ``named`` are the fields named inside it, None for an array that is kept whole. The elements
        of an array that is looked into get regular names, as servers write them.
        """
        parts: list[bytes] = []
        count = 0
        position = start + 4
        while (inner := data[position]) != 0:
            allowance.spend(1)
            value = data.index(0, position + 1) + 1
            end = value_end(data, inner, value)
            field, position = position, end
            below = named
            if kind == DOCUMENT and named is not None:
                below = named.get(data[field + 1 : value - 1], _UNNAMED)
            if below is _UNNAMED:
                if not self.keeps:
                    parts.append(data[field:end])
                continue
            kept = self.keeps is (below is None)
            if kept and inner == ARRAY if below is None else inner in CONTAINERS:
                content = self._projected(data, inner, value, below, allowance)
            elif kept:
                content = data[value:end]
            else:
                continue
            parts.append(data[field:value] if kind == DOCUMENT else b"%c%d\0" % (inner, count))
            parts.append(content)
            count += 1
        body = b"".join(parts)
        allowance.spend(len(body) // UNIT_BYTES)
        return document_of(body)


def compile_project(raw: bytes) -> Projection:
    """Return the projection of a ``$project``, given as BSON. Raises Declined."""
    named: list[tuple[bytes, bool]] = []
    _collect(raw, 0, len(raw), b"", named, 0)
    inclusions = {wanted for name, wanted in named if name != b"_id"}
    if len(named) > _MOST_FIELDS or not named:
        raise Declined("a projection is empty or very large")
    if (b"_id", False) in named:
        raise Declined("a projection drops the resume token")
    if len(inclusions) > 1 or not inclusions:
        raise Declined("a projection includes and excludes, or names the resume token alone")
    keeps = inclusions == {True}
    if not keeps and (b"_id", True) in named:
        raise Declined("an exclusion includes the resume token")
    names = [name for name, _ in named]
    if keeps and b"_id" not in names:
        names.append(b"_id")
    return Projection(_tree(names), keeps=keeps)


def compile_unset(raw: bytes, element: Element) -> Projection:
    """Return the projection of an ``$unset``'s operand in ``raw``. Raises Declined."""
    operands = [element]
    if element.type == ARRAY:
        operands = list(iter_elements(raw, element.start, element.end))
    if not operands or any(operand.type != STRING for operand in operands):
        raise Declined("$unset names no fields")
    if len(operands) > _MOST_FIELDS:
        raise Declined("$unset names very many fields")
    return Projection(
        _tree([raw[e.start + 4 : e.end - 1] for e in operands], drops=True), keeps=False
    )


def _collect(
    raw: bytes, start: int, end: int, prefix: bytes, named: list[tuple[bytes, bool]], depth: int
) -> None:
    if depth > _MOST_DEPTH:
        raise Declined("a projection nests deeply")
    count = 0
    for field in iter_elements(raw, start, end):
        count += 1
        if field.name.startswith(b"$"):
            raise Declined("a projection has an expression")
        name = prefix + field.name
        if field.type == DOCUMENT:
            _collect(raw, field.start, field.end, name + b".", named, depth + 1)
        elif field.type == BOOLEAN:
            named.append((name, bool(raw[field.start])))
        elif field.type in (INT32, INT64):
            named.append((name, number(raw, field.type, field.start) != 0))
        else:
            raise Declined("a projection computes a field")
    if not count:
        raise Declined("a projection has an empty document")


def _tree(names: list[bytes], *, drops: bool = False) -> Tree:
    """Return the named fields as a tree. Raises Declined if paths collide or are unusual."""
    root: Tree = {}
    for name in names:
        *outer, last = parts = name.split(b".")
        if any(not part or part.startswith(b"$") or part.isdigit() for part in parts):
            raise Declined("a projection has an unusual path")
        if parts[0] == b"_id" and (outer or drops):
            raise Declined("a projection changes the resume token")
        if len(parts) > _MOST_DEPTH:
            raise Declined("a projection nests deeply")
        tree = root
        for part in outer:
            inner = tree.setdefault(part, {})
            if inner is None:
                raise Declined("paths of a projection collide")
            tree = inner
        if last in tree:
            raise Declined("paths of a projection collide")
        tree[last] = None
    return root
